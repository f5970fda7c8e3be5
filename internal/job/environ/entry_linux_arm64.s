#include "textflag.h"

// As in entry_linux_amd64.s.
TEXT kbnode_entry(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVD 0(RSP), R0 // arguments
	ADD $8, RSP, R1
	CMP $2, R0
	BLT run
	MOVD 8(R1), R2
	MOVD $0x61727473746f6f62, R3 // "bootstra"
	MOVD 0(R2), R4
	CMP R3, R4
	BNE run
	MOVBU 8(R2), R4
	CMP $0x70, R4 // "p"
	BNE run
	MOVBU 9(R2), R4
	CBNZ R4, run
	ADD R0<<3, R1, R5 // the 0 behind the arguments
	ADD $8, R5, R6
end:
	MOVD 0(R6), R4
	ADD $8, R6
	CBNZ R4, end
	SUB $8, R6 // the 0 behind the variables
move:
	SUB $8, R6
	MOVD 0(R5), R4
	MOVD R4, 0(R6)
	SUB $8, R5
	CMP R1, R5
	BGE move
	MOVD R6, R1
run:
	JMP runtime·rt0_go(SB)
