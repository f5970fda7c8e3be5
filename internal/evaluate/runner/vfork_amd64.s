#include "textflag.h"

// func vfork() int
// As syscall·rawVforkSyscall, it keeps the return address in a register, which the child does not overwrite.
TEXT ·vfork(SB),NOSPLIT|NOFRAME,$0-8
	MOVQ	$0x4111, DI // CLONE_VFORK|CLONE_VM|SIGCHLD
	MOVQ	$0, SI
	MOVQ	$0, DX
	MOVQ	$0, R10
	MOVQ	$0, R8
	MOVQ	$56, AX // clone
	POPQ	R12
	SYSCALL
	PUSHQ	R12
	MOVQ	AX, ret+0(FP)
	RET
