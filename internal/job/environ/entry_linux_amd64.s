#include "textflag.h"

// The kernel leaves on the stack: the number of arguments, pointers to them, 0, pointers to variables, 0, and what it
// tells a program. This moves the arguments up over the variables, for the runtime finds all else behind them.
TEXT kbnode_entry(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVQ 0(SP), CX // arguments
	LEAQ 8(SP), SI
	CMPQ CX, $2
	JLT run
	MOVQ 8(SI), DX
	MOVQ $0x61727473746f6f62, AX // "bootstra"; behind the last string are 8 bytes
	CMPQ AX, 0(DX)
	JNE run
	CMPB 8(DX), $0x70 // "p"
	JNE run
	CMPB 9(DX), $0
	JNE run
	LEAQ 8(SI)(CX*8), DI
end:
	MOVQ 0(DI), DX
	ADDQ $8, DI
	TESTQ DX, DX
	JNE end
	SUBQ $8, DI // the 0 behind the variables
	LEAQ 0(SI)(CX*8), BX // the 0 behind the arguments
move:
	SUBQ $8, DI
	MOVQ 0(BX), DX
	MOVQ DX, 0(DI)
	SUBQ $8, BX
	CMPQ BX, SI
	JGE move
	MOVQ DI, SI
run:
	MOVQ CX, DI
	JMP runtime·rt0_go(SB)
