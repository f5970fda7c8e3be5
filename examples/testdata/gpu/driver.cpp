// Stands in for CUDA's driver: memory that another process can attach by a handle of 64 bytes. It lies in the host's
// memory, and a thread of its owner hands it out.
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace {

struct Block {
	int fd;
	size_t size;
};
std::map<void *, Block> blocks;

struct Handle {
	char bytes[64];
};

socklen_t address_of(sockaddr_un &a, const char *name) {
	std::memset(&a, 0, sizeof a);
	a.sun_family = AF_UNIX;
	std::strncpy(a.sun_path + 1, name, 60); // no file, but a name
	return socklen_t(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(name));
}

void serve(int listener, int fd) {
	for (;;) {
		int client = accept(listener, nullptr, nullptr);
		if (client < 0) return;
		char byte = 'x', control[CMSG_SPACE(sizeof fd)] = {};
		iovec data{&byte, 1};
		msghdr m{};
		m.msg_iov = &data, m.msg_iovlen = 1, m.msg_control = control, m.msg_controllen = sizeof control;
		cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
		std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
		sendmsg(client, &m, 0);
		close(client);
	}
}

void *map(int fd, size_t size) {
	void *p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED) blocks[p] = {fd, size};
	return p == MAP_FAILED ? nullptr : p;
}

} // namespace

extern "C" int cuMemAlloc_v2(void **p, size_t size) {
	int fd = memfd_create("gpu", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, off_t(size)) != 0) return 2;
	return (*p = map(fd, size)) ? 0 : 2;
}

extern "C" int cuMemFree_v2(void *p) {
	auto it = blocks.find(p);
	if (it == blocks.end()) return 1;
	munmap(p, it->second.size);
	close(it->second.fd);
	blocks.erase(it);
	return 0;
}

extern "C" int cuIpcGetMemHandle(Handle *h, void *p) {
	auto it = blocks.find(p);
	if (it == blocks.end()) return 1;
	static int count;
	std::string name = "gpu-" + std::to_string(getpid()) + "-" + std::to_string(count++);
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	sockaddr_un a;
	socklen_t n = address_of(a, name.c_str());
	if (bind(listener, reinterpret_cast<sockaddr *>(&a), n) != 0 || listen(listener, 8) != 0) return 3;
	std::thread(serve, listener, dup(it->second.fd)).detach();
	std::memset(h, 0, sizeof *h);
	std::strncpy(h->bytes, name.c_str(), 60);
	return 0;
}

extern "C" int cuIpcOpenMemHandle_v2(void **p, Handle h, unsigned) {
	int fd = -1, client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	sockaddr_un a;
	socklen_t n = address_of(a, h.bytes);
	if (connect(client, reinterpret_cast<sockaddr *>(&a), n) != 0) return 4;
	char byte, control[CMSG_SPACE(sizeof fd)];
	iovec data{&byte, 1};
	msghdr m{};
	m.msg_iov = &data, m.msg_iovlen = 1, m.msg_control = control, m.msg_controllen = sizeof control;
	if (recvmsg(client, &m, 0) != 1 || !CMSG_FIRSTHDR(&m)) return 5;
	std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	close(client);
	return (*p = map(fd, size_t(lseek(fd, 0, SEEK_END)))) ? 0 : 6;
}
