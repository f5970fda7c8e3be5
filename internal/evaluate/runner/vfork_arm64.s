#include "textflag.h"

// func vfork() int
// The return address is in a register, which the child does not overwrite.
TEXT ·vfork(SB),NOSPLIT,$0-8
	MOVD	$0x4111, R0 // CLONE_VFORK|CLONE_VM|SIGCHLD
	MOVD	$0, R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$220, R8 // clone
	SVC
	MOVD	R0, ret+0(FP)
	RET
