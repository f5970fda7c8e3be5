package runner

import "golang.org/x/sys/unix"

// sysOpen is the number of open(2), which newer architectures lack.
const sysOpen = unix.SYS_OPEN
