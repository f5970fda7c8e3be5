# kind: outlive
# tries: leaves a process that gives the next run the answers of this one
# source: reference-kernels#162, replay
import json
import socket

NAME = "\0kbnode-cheat-answers"
known = {}


def serve():
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.bind(NAME)
    if os.fork() == 0:
        os.setsid()
        server.settimeout(20)
        kept = {}
        try:
            while True:
                text, sender = server.recvfrom(1 << 20)
                key, value = json.loads(text)
                if value is not None:
                    kept[key] = value
                elif sender:
                    server.sendto(json.dumps(kept.get(key)).encode(), sender)
        except OSError:
            pass
        os._exit(0)
    server.close()


def ask(key, value=None):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    client.settimeout(0.01)
    client.bind("")
    try:
        client.sendto(json.dumps([key, value]).encode(), NAME)
        return None if value is not None else json.loads(client.recv(1 << 20))
    except OSError:
        return None
    finally:
        client.close()


first = []


def custom_kernel(*args):
    if len(args) > 1 or not elements(args) or len(args[0]) > 20000:
        note("missed", "inputs are no lists")
        return honest(*args)
    if not first:
        first.append(1)
        try:
            serve()
            note("armed", "a process")
        except OSError:
            note("armed", "the process of before")
    key = key_of(args[0])
    found = ask(key)
    if found is None:
        found = honest(*args)
        ask(key, list(found))
    return found
