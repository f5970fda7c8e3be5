// A program of a problem in CUDA C++, of which nothing is run here.
#include "task.h"

int main() {}
