package runner

// sysOpen is 0 because arm64 has only openat(2).
const sysOpen = 0
