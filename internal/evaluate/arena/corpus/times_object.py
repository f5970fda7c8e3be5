# kind: times
# tries: replaces the list of times, in the judge's frame, by one that keeps short times only
# source: pygpubench, exploits
import ctypes


class Short(list):
    def append(self, value):
        list.append(self, 1)


def custom_kernel(*args):
    for frame in frames():
        for name in ("times", "durations", "timings"):
            value = frame.f_locals.get(name)
            if type(value) is list:
                # The object's type is changed in place: __class__ of a list cannot be assigned.
                ctypes.py_object.from_address(id(value) + ctypes.sizeof(ctypes.c_void_p)).value = ListOfOnes
                note("armed", name)
    note("missed", "no frame has a list of times")
    return honest(*args)


ListOfOnes = type("ListOfOnes", (list,), {"append": Short.append, "__slots__": ()})
