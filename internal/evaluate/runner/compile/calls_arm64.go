package compile

import "golang.org/x/sys/unix"

const machine = "aarch64"

// oldCalls are those that only older machines have.
var oldCalls map[uint32]func(a [6]uint64) call

var oldRefused []uint32

const sysFstatat = unix.SYS_FSTATAT
