def double(numbers):
    return [2 * n for n in numbers]
