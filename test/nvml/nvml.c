// A stand-in for libnvidia-ml.so.1: it answers what a text file says, so that
// tests can have any GPUs, and can break them. See README.md for the file.
//
// With -DNOSYM it lacks the functions that came after NVML 450 or so, as an old
// driver does. With -DHANG it hangs in nvmlInit unless the file says otherwise.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "nvml.h"

#define MAX_LINES 2048
#define MAX_GPUS 64
#define MAX_MIG 8
#define DEFAULT_FILE "/etc/fake-nvml.conf"
#define CALL nvmlReturn_t DECLDIR

struct nvmlDevice_st { int gpu, mig; }; // mig is -1 for a whole GPU
struct nvmlGpuInstance_st { int gpu, mig; };

static struct { char key[96], value[416]; } line[MAX_LINES];
static int lines, ready;
static struct timespec changed; // when the file was, that is loaded
static struct nvmlDevice_st whole[MAX_GPUS], part[MAX_GPUS][MAX_MIG];
static struct nvmlGpuInstance_st instance[MAX_GPUS][MAX_MIG];

// ---- the file ----

// Keys of the file whose meaning is not plain where they are read:
//
//   count, driver, nvml, cuda: of the machine; 64 GPUs at most
//   init, hang, crash: return code of nvmlInit (9 driver not loaded, 18 version mismatch), seconds that
//       it hangs, whether it ends with SIGABRT
//   uuid, pci: GPU-00000000-0000-4000-8000-00000000000K and 00000000:(10+K):00.0, K being the index
//   memory_node: NUMA node that is the GPU's memory (Grace)
//   sram_threshold: 1 is exceeded
//   recovery_action: 1 reset, 2 reboot, 4 drain and reset
//   clock_reasons: bit set: 0x1 idle, 0x4 power cap, 0x8 slowdown, 0x40 heat
//   locked_clocks: such as '1410-1410' or 'tdp'; changes no other answer
//   energy_mj: a smaller number says that the GPU was reset
//   nvlink_gpus: PCI addresses, to which the links lead by turns; without any they lead to a switch
//   fabric_state: 3 is completed
//   processes, graphics: 'PID:BYTES PID:BYTES …': that compute, that draw
//   mig.N: 'UUID gi ci start size slices SMs MiB profile name…', N from 0 to 7; also mig.N.used_mib,
//       mig.N.processes
//   handle: return code for this GPU's handle: 15 is a lost GPU
//   error: return code of every other call about it (its PCI address stays readable)
//   fail.FUNCTION, hang.FUNCTION: return code of one function, seconds that it hangs:
//       'gpu.2.fail.nvmlDeviceGetEccMode = 999'
//   hang_gpu: seconds that getting its handle hangs

static const char *file(void)
{
	const char *path = getenv("KBNODE_FAKE_NVML");
	return path && *path ? path : DEFAULT_FILE;
}

static void load(void)
{
	struct stat st;
	FILE *f = fopen(file(), "r");
	char buf[600];

	if (f && !fstat(fileno(f), &st))
		changed = st.st_mtim;

	lines = 0;
	while (f && lines < MAX_LINES && fgets(buf, sizeof buf, f)) {
		char *k = buf + strspn(buf, " \t"), *v = strchr(k, '=');
		if (*k == '#' || !v)
			continue;
		*v++ = 0;
		v += strspn(v, " \t");
		v[strcspn(v, "\r\n")] = 0;
		k[strcspn(k, " \t")] = 0;
		snprintf(line[lines].key, sizeof line[lines].key, "%s", k);
		snprintf(line[lines].value, sizeof line[lines].value, "%s", v);
		lines++;
	}
	if (f)
		fclose(f);
}

// Who keeps the library open, as a sampler does, sees changes of the file, too.
static void reload(void)
{
	struct stat st;
	if (!stat(file(), &st) && (st.st_mtim.tv_sec != changed.tv_sec || st.st_mtim.tv_nsec != changed.tv_nsec))
		load();
}

// The last line with a key counts, so that a test can append to the file.
static const char *find(const char *key)
{
	for (int i = lines - 1; i >= 0; i--)
		if (!strcmp(line[i].key, key))
			return line[i].value;
	return NULL;
}

// The value for one GPU: "gpu.3.key", else "key", else what is given.
static const char *text(int gpu, const char *key, const char *otherwise)
{
	char k[128];
	snprintf(k, sizeof k, "gpu.%d.%s", gpu, key);
	const char *v = find(k);
	if (!v)
		v = find(key);
	return v ? v : otherwise;
}

static long long number(int gpu, const char *key, long long otherwise)
{
	const char *v = text(gpu, key, NULL);
	return v ? strtoll(v, NULL, 0) : otherwise;
}

// An optional value: "none" makes the function answer NOT_SUPPORTED.
static nvmlReturn_t optional(int gpu, const char *key, long long otherwise, long long *out)
{
	const char *v = text(gpu, key, NULL);
	if (v && !strcmp(v, "none"))
		return NVML_ERROR_NOT_SUPPORTED;
	*out = v ? strtoll(v, NULL, 0) : otherwise;
	return NVML_SUCCESS;
}

// Hangs for the seconds that a key says, or until the file says fewer.
static void hang(int gpu, const char *key, long long otherwise)
{
	struct timespec begun, now, pause = { .tv_nsec = 20000000 };
	clock_gettime(CLOCK_MONOTONIC, &begun);
	for (now = begun; now.tv_sec - begun.tv_sec < number(gpu, key, otherwise); clock_gettime(CLOCK_MONOTONIC, &now)) {
		nanosleep(&pause, NULL);
		reload();
	}
}

// What a call to fn about this GPU has to fail with, after it hung.
static nvmlReturn_t broken(int gpu, const char *fn)
{
	char key[120];
	reload();
	snprintf(key, sizeof key, "hang.%s", fn);
	hang(gpu, key, 0);
	snprintf(key, sizeof key, "fail.%s", fn);
	long long code = number(gpu, key, 0);
	return code ? code : number(gpu, "error", 0);
}

static nvmlReturn_t put(char *to, unsigned int length, const char *from)
{
	if (strlen(from) + 1 > length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(to, from);
	return NVML_SUCCESS;
}

#define GPU (device.handle->gpu)
#define CHECK                                             \
	do {                                              \
		if (!ready)                               \
			return NVML_ERROR_UNINITIALIZED;  \
		nvmlReturn_t bad_ = broken(GPU, __func__); \
		if (bad_)                                 \
			return bad_;                      \
	} while (0)

// A function whose only answer is one number.
#define NUMBER(fn, type, key, otherwise)                            \
	CALL fn(nvmlDevice_t device, type *out)                     \
	{                                                           \
		long long v = 0;                                    \
		CHECK;                                              \
		nvmlReturn_t r = optional(GPU, key, otherwise, &v); \
		*out = (type)v;                                     \
		return r;                                           \
	}

// A function whose only answer is text.
#define TEXT(fn, key, otherwise)                                            \
	CALL fn(nvmlDevice_t device, char *out, unsigned int length)        \
	{                                                                   \
		CHECK;                                                      \
		const char *v = text(GPU, key, otherwise);                  \
		if (!strcmp(v, "none"))                                     \
			return NVML_ERROR_NOT_SUPPORTED;                    \
		return put(out, length, v);                                 \
	}

// ---- the library ----

CALL nvmlInit_v2(void)
{
	load();
#ifdef HANG
	hang(-1, "hang", 3600);
#else
	hang(-1, "hang", 0);
#endif
	if (number(-1, "crash", 0))
		abort();
	nvmlReturn_t code = number(-1, "init", 0);
	ready = code == NVML_SUCCESS;
	for (int i = 0; i < MAX_GPUS; i++) {
		whole[i] = (struct nvmlDevice_st){ i, -1 };
		for (int m = 0; m < MAX_MIG; m++) {
			part[i][m] = (struct nvmlDevice_st){ i, m };
			instance[i][m] = (struct nvmlGpuInstance_st){ i, m };
		}
	}
	return code;
}

CALL nvmlInitWithFlags(unsigned int flags) { (void)flags; return nvmlInit_v2(); }
CALL nvmlShutdown(void)
{
	broken(-1, "nvmlShutdown");
	ready = 0;
	return NVML_SUCCESS;
}

const char DECLDIR *nvmlErrorString(nvmlReturn_t code)
{
	switch ((int)code) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
	case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
	default: return "Unknown Error";
	}
}

CALL nvmlSystemGetDriverVersion(char *v, unsigned int n) { return put(v, n, text(-1, "driver", "580.95.05")); }
CALL nvmlSystemGetNVMLVersion(char *v, unsigned int n) { return put(v, n, text(-1, "nvml", "13.580.95.05")); }
CALL nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = number(-1, "cuda", 13000); return NVML_SUCCESS; }

// ---- finding GPUs ----

static unsigned int gpus(void)
{
	long long n = number(-1, "count", 8);
	return n < 0 ? 0 : n > MAX_GPUS ? MAX_GPUS : n;
}

static const char *uuid(int gpu)
{
	static char made[64];
	snprintf(made, sizeof made, "GPU-00000000-0000-4000-8000-%012x", gpu);
	return text(gpu, "uuid", made);
}

static const char *pci(int gpu)
{
	static char made[32];
	snprintf(made, sizeof made, "00000000:%02X:00.0", 0x10 + gpu);
	return text(gpu, "pci", made);
}

CALL nvmlDeviceGetCount_v2(unsigned int *n) { *n = gpus(); return NVML_SUCCESS; }

CALL nvmlDeviceGetHandleByIndex_v2(unsigned int i, nvmlDevice_t *device)
{
	if (i >= gpus())
		return NVML_ERROR_INVALID_ARGUMENT;
	device->handle = &whole[i];
	hang(i, "hang_gpu", 0);
	return number(i, "handle", 0);
}

static int same_address(const char *a, const char *b)
{
	unsigned int p[4], q[4];
	return sscanf(a, "%x:%x:%x.%x", p, p + 1, p + 2, p + 3) == 4 &&
	       sscanf(b, "%x:%x:%x.%x", q, q + 1, q + 2, q + 3) == 4 && !memcmp(p, q, sizeof p);
}

CALL nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	for (unsigned int i = 0; i < gpus(); i++)
		if (same_address(id, pci(i)))
			return nvmlDeviceGetHandleByIndex_v2(i, device);
	return NVML_ERROR_NOT_FOUND;
}

CALL nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *i) { CHECK; *i = GPU; return NVML_SUCCESS; }

// ---- MIG ----

struct mig { char uuid[96], name[96]; unsigned int gi, ci, start, size, slices, sms, mib, profile; };

static int mig(int gpu, int m, struct mig *out)
{
	char key[32];
	snprintf(key, sizeof key, "mig.%d", m);
	const char *v = text(gpu, key, NULL);
	memset(out, 0, sizeof *out);
	return v && sscanf(v, "%95s %u %u %u %u %u %u %u %u %95[^\n]", out->uuid, &out->gi, &out->ci, &out->start, &out->size,
			   &out->slices, &out->sms, &out->mib, &out->profile, out->name) == 10;
}

CALL nvmlDeviceGetHandleByUUID(const char *id, nvmlDevice_t *device)
{
	struct mig m;
	for (unsigned int i = 0; i < gpus(); i++) {
		if (!strcmp(id, uuid(i)))
			return nvmlDeviceGetHandleByIndex_v2(i, device);
		for (int k = 0; k < MAX_MIG; k++)
			if (mig(i, k, &m) && !strcmp(id, m.uuid)) {
				device->handle = &part[i][k];
				return number(i, "handle", 0);
			}
	}
	return NVML_ERROR_NOT_FOUND;
}

#ifndef NOSYM
CALL nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *next)
{
	long long v = 0;
	CHECK;
	nvmlReturn_t r = optional(GPU, "mig", 0, &v);
	*now = v;
	*next = number(GPU, "mig_pending", v);
	return r;
}

CALL nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *n) { CHECK; *n = MAX_MIG; return NVML_SUCCESS; }

CALL nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int i, nvmlDevice_t *out)
{
	struct mig m;
	CHECK;
	if (i >= MAX_MIG || !mig(GPU, i, &m))
		return NVML_ERROR_NOT_FOUND;
	out->handle = &part[GPU][i];
	return NVML_SUCCESS;
}

CALL nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is) { *is = device.handle->mig >= 0; return NVML_SUCCESS; }

CALL nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
	CHECK;
	out->handle = &whole[GPU];
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	struct mig m;
	CHECK;
	if (device.handle->mig < 0 || !mig(GPU, device.handle->mig, &m))
		return NVML_ERROR_NOT_SUPPORTED;
	*id = m.gi;
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	struct mig m;
	CHECK;
	if (device.handle->mig < 0 || !mig(GPU, device.handle->mig, &m))
		return NVML_ERROR_NOT_SUPPORTED;
	*id = m.ci;
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *a)
{
	struct mig m;
	CHECK;
	if (device.handle->mig < 0 || !mig(GPU, device.handle->mig, &m))
		return NVML_ERROR_NOT_SUPPORTED;
	memset(a, 0, sizeof *a);
	a->multiprocessorCount = m.sms;
	a->gpuInstanceSliceCount = a->computeInstanceSliceCount = m.slices;
	a->memorySizeMB = m.mib;
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out)
{
	struct mig m;
	CHECK;
	for (int i = 0; i < MAX_MIG; i++)
		if (mig(GPU, i, &m) && m.gi == id) {
			out->handle = &instance[GPU][i];
			return NVML_SUCCESS;
		}
	return NVML_ERROR_NOT_FOUND;
}

CALL nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gi, nvmlGpuInstanceInfo_t *info)
{
	struct mig m;
	if (!mig(gi.handle->gpu, gi.handle->mig, &m))
		return NVML_ERROR_NOT_FOUND;
	info->device.handle = &whole[gi.handle->gpu];
	info->id = m.gi;
	info->profileId = m.profile;
	info->placement.start = m.start;
	info->placement.size = m.size;
	return NVML_SUCCESS;
}
#endif

// ---- identity ----

CALL nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned int length)
{
	struct mig m;
	CHECK;
	return put(out, length, device.handle->mig >= 0 && mig(GPU, device.handle->mig, &m) ? m.uuid : uuid(GPU));
}

CALL nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned int length)
{
	struct mig m;
	CHECK;
	return put(out, length, device.handle->mig >= 0 && mig(GPU, device.handle->mig, &m) ? m.name : text(GPU, "model", "NVIDIA B200"));
}

// The driver keeps the address, so a lost GPU still has one.
CALL nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *p)
{
	unsigned int function;
	memset(p, 0, sizeof *p);
	if (sscanf(pci(GPU), "%x:%x:%x.%x", &p->domain, &p->bus, &p->device, &function) != 4)
		return NVML_ERROR_UNKNOWN;
	snprintf(p->busId, sizeof p->busId, "%08X:%02X:%02X.0", p->domain, p->bus, p->device);
	snprintf(p->busIdLegacy, sizeof p->busIdLegacy, "%04X:%02X:%02X.0", p->domain & 0xffff, p->bus & 0xff, p->device & 0xff);
	p->pciDeviceId = number(GPU, "device_id", 0x2901) << 16 | 0x10de;
	p->pciSubSystemId = number(GPU, "subsystem_id", 0x1999) << 16 | 0x10de;
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *out)
{
	CHECK;
	*out = number(GPU, "minor", GPU);
	return NVML_SUCCESS;
}

TEXT(nvmlDeviceGetSerial, "serial", "none")
TEXT(nvmlDeviceGetVbiosVersion, "vbios", "97.00.88.00.0F")

CALL nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	CHECK;
	return sscanf(text(GPU, "compute", "10.0"), "%d.%d", major, minor) == 2 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

// ---- memory ----

static nvmlReturn_t memory(const struct nvmlDevice_st *d, nvmlMemory_v2_t *m)
{
	int gpu = d->gpu;
	long long mib = 0;
	struct mig part;
	if (d->mig >= 0 && mig(gpu, d->mig, &part)) {
		char key[32];
		snprintf(key, sizeof key, "mig.%d.used_mib", d->mig);
		m->total = (unsigned long long)part.mib << 20;
		m->reserved = 0;
		m->used = (unsigned long long)number(gpu, key, 0) << 20;
		m->free = m->total - m->used;
		return NVML_SUCCESS;
	}
	nvmlReturn_t r = optional(gpu, "memory_mib", 183359, &mib);
	m->total = (unsigned long long)mib << 20;
	m->reserved = (unsigned long long)number(gpu, "reserved_mib", 585) << 20;
	m->used = (unsigned long long)number(gpu, "used_mib", 0) << 20;
	m->free = m->total - m->reserved - m->used;
	return r;
}

CALL nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
	nvmlMemory_v2_t m;
	CHECK;
	nvmlReturn_t r = memory(device.handle, &m);
	*out = (nvmlMemory_t){ .total = m.total, .free = m.free, .used = m.used + m.reserved };
	return r;
}

// ---- modes, errors, speed, links ----

NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, "persistence", 1)
NUMBER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, "compute_mode", 0)
NUMBER(nvmlDeviceGetPowerUsage, unsigned int, "power_mw", 142000)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, "power_limit_mw", 1000000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, "power_default_mw", 1000000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, "power_enforced_mw", 1000000)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, "pcie_gen", 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, "pcie_max_gen", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, "pcie_width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, "pcie_max_width", 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int, "pcie_replays", 0)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "clock_reasons", 1)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t, "retired_pending", 0)

CALL nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *now, nvmlEnableState_t *next)
{
	long long v = 0;
	CHECK;
	nvmlReturn_t r = optional(GPU, "ecc", 1, &v);
	*now = v;
	*next = number(GPU, "ecc_pending", v);
	return r;
}

CALL nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t kind, nvmlEccCounterType_t since, unsigned long long *n)
{
	char key[64];
	CHECK;
	if (number(GPU, "ecc", 1) != 1)
		return NVML_ERROR_NOT_SUPPORTED;
	snprintf(key, sizeof key, "ecc_%s_%s", since == NVML_VOLATILE_ECC ? "volatile" : "aggregate",
		 kind == NVML_MEMORY_ERROR_TYPE_CORRECTED ? "corrected" : "uncorrected");
	*n = number(GPU, key, 0);
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count, unsigned long long *pages)
{
	long long n = 0;
	CHECK;
	nvmlReturn_t r = optional(GPU, cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR ? "retired_double" : "retired_single", 0, &n);
	unsigned int room = *count;
	*count = n;
	if (r != NVML_SUCCESS)
		return r;
	if (room < n)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (int i = 0; pages && i < n; i++)
		pages[i] = 0x1000 * (i + 1);
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	CHECK;
	*mhz = type == NVML_CLOCK_MEM ? number(GPU, "memory_clock", 3996) : number(GPU, "sm_clock", 120);
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	CHECK;
	*mhz = type == NVML_CLOCK_MEM ? number(GPU, "max_memory_clock", 3996) : number(GPU, "max_sm_clock", 1965);
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *low, unsigned int *high)
{
	CHECK;
	*low = number(GPU, "power_min_mw", 200000);
	*high = number(GPU, "power_max_mw", 1000000);
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius)
{
	(void)sensor;
	CHECK;
	*celsius = number(GPU, "temperature", 31);
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t which, unsigned int *celsius)
{
	CHECK;
	*celsius = which == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN ? number(GPU, "shutdown", 95) : number(GPU, "slowdown", 90);
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *up)
{
	CHECK;
	*up = link < number(GPU, "nvlinks_up", number(GPU, "nvlinks", 18));
	return NVML_SUCCESS;
}

// "processes = PID:BYTES PID:BYTES", "mig.0.processes = …" for those of an instance
static unsigned int listed(int gpu, const char *key, unsigned int gi, unsigned int ci, unsigned int n, unsigned int room, nvmlProcessInfo_v2_t *out)
{
	unsigned int pid;
	unsigned long long bytes;
	int read;
	for (const char *s = text(gpu, key, ""); sscanf(s, " %u:%llu%n", &pid, &bytes, &read) == 2; s += read, n++)
		if (n < room && out)
			out[n] = (nvmlProcessInfo_v2_t){ .pid = pid, .usedGpuMemory = bytes, .gpuInstanceId = gi, .computeInstanceId = ci };
	return n;
}

// Those of a whole GPU, its instances' among them, or of one instance.
static nvmlReturn_t processes(const struct nvmlDevice_st *d, const char *key, unsigned int *count, nvmlProcessInfo_v2_t *out)
{
	unsigned int room = *count, n = 0;
	struct mig m;
	if (d->mig < 0)
		n = listed(d->gpu, key, ~0U, ~0U, n, room, out);
	for (int i = 0; i < MAX_MIG; i++) {
		char of[64];
		snprintf(of, sizeof of, "mig.%d.%s", i, key);
		if ((d->mig < 0 || d->mig == i) && mig(d->gpu, i, &m))
			n = listed(d->gpu, of, m.gi, m.ci, n, room, out);
	}
	*count = n;
	return n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESSES(fn, key)                                                                     \
	CALL fn(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *out)           \
	{                                                                                      \
		CHECK;                                                                         \
		return processes(device.handle, key, count, out);                                       \
	}

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "processes")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics")

// ---- settings ----

// What is set stays in the file, as the driver keeps it when the process has gone.
static nvmlReturn_t keep(int gpu, const char *key, const char *value)
{
	FILE *f = fopen(file(), "a");
	if (!f || fprintf(f, "gpu.%d.%s = %s\n", gpu, key, value) < 0 || fclose(f))
		return NVML_ERROR_NO_PERMISSION;
	load();
	return NVML_SUCCESS;
}

CALL nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
	CHECK;
	return keep(GPU, "persistence", mode == NVML_FEATURE_ENABLED ? "1" : "0");
}

#ifndef NOSYM
CALL nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int low, unsigned int high)
{
	char value[32];
	CHECK;
	if ((low >= NVML_CLOCK_LIMIT_ID_RANGE_START) != (high >= NVML_CLOCK_LIMIT_ID_RANGE_START) ||
	    (low < NVML_CLOCK_LIMIT_ID_RANGE_START && high > number(GPU, "max_sm_clock", 1965)))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (low == NVML_CLOCK_LIMIT_ID_TDP && high == NVML_CLOCK_LIMIT_ID_TDP)
		return keep(GPU, "locked_clocks", "tdp");
	snprintf(value, sizeof value, "%u-%u", low, high);
	return keep(GPU, "locked_clocks", value);
}

CALL nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
	CHECK;
	return keep(GPU, "locked_clocks", "none");
}
#endif

// ---- what older drivers lack ----

#ifndef NOSYM
// "nvlink_gpus = ADDRESS ADDRESS": the links lead there by turns; without it to a switch.
static unsigned int far_ends(int gpu, char ends[][32], unsigned int room)
{
	unsigned int n = 0;
	int read;
	for (const char *s = text(gpu, "nvlink_gpus", ""); n < room && sscanf(s, " %31s%n", ends[n], &read) == 1; s += read)
		n++;
	return n;
}

CALL nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t *type)
{
	char ends[18][32];
	(void)link;
	CHECK;
	*type = far_ends(GPU, ends, 18) ? NVML_NVLINK_DEVICE_TYPE_GPU : NVML_NVLINK_DEVICE_TYPE_SWITCH;
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *p)
{
	char ends[18][32];
	unsigned int function;
	CHECK;
	unsigned int n = far_ends(GPU, ends, 18);
	memset(p, 0, sizeof *p);
	if (!n || sscanf(ends[link % n], "%x:%x:%x.%x", &p->domain, &p->bus, &p->device, &function) != 4)
		return NVML_ERROR_UNKNOWN;
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *u)
{
	long long v = 0;
	CHECK;
	nvmlReturn_t r = optional(GPU, "busy", number(GPU, "clock_reasons", 1) & 1 ? 0 : 100, &v);
	*u = (nvmlUtilization_t){ .gpu = v };
	return r;
}

NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "energy_mj", 86400000)
NUMBER(nvmlDeviceGetModuleId, unsigned int, "module", GPU + 1)
NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, "architecture", NVML_DEVICE_ARCH_BLACKWELL)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "clock_reasons", 1)

CALL nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
	CHECK;
	const char *v = text(GPU, "memory_node", "none");
	*node = atoi(v);
	return strcmp(v, "none") ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

CALL nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *out)
{
	CHECK;
	return put(out, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE, text(GPU, "gsp", text(-1, "driver", "580.95.05")));
}

CALL nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *m)
{
	CHECK;
	if (m->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	return memory(device.handle, m);
}

CALL nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *s)
{
	CHECK;
	s->bThresholdExceeded = number(GPU, "sram_threshold", 0);
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *m)
{
	CHECK;
	m->marginTemperature = number(GPU, "margin", 54);
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending, unsigned int *failed)
{
	long long v = 0;
	CHECK;
	nvmlReturn_t r = optional(GPU, "remapped_corrected", 0, &v);
	*corrected = v;
	*uncorrected = number(GPU, "remapped_uncorrected", 0);
	*pending = number(GPU, "remap_pending", 0);
	*failed = number(GPU, "remap_failed", 0);
	return r;
}

CALL nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *h)
{
	CHECK;
	*h = (nvmlRowRemapperHistogramValues_t){ .max = number(GPU, "banks", 5120) };
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *f)
{
	CHECK;
	for (int i = 0; i < count; i++) {
		f[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
		f[i].nvmlReturn = NVML_SUCCESS;
		memset(&f[i].value, 0, sizeof f[i].value);
		if (f[i].fieldId == NVML_FI_DEV_NVLINK_LINK_COUNT)
			f[i].value.uiVal = number(GPU, "nvlinks", 18);
		else if (f[i].fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
			f[i].value.uiVal = number(GPU, "recovery_action", 0);
		else
			f[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
	}
	return NVML_SUCCESS;
}

CALL nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *f)
{
	CHECK;
	if (f->version != nvmlGpuFabricInfo_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	// The caller's struct is as long as its version says, not as this type.
	nvmlGpuFabricInfo_v2_t *v2 = (nvmlGpuFabricInfo_v2_t *)f;
	v2->state = number(GPU, "fabric_state", NVML_GPU_FABRIC_STATE_COMPLETED);
	v2->status = number(GPU, "fabric_status", 0);
	v2->cliqueId = 0;
	v2->healthMask = number(GPU, "fabric_health", 0);
	memset(v2->clusterUuid, 0, sizeof v2->clusterUuid);
	return NVML_SUCCESS;
}

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "processes")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
#endif
