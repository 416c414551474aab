/* RI5CY's Xpulp instructions for a compiler that does not know them.
 *
 * Loops in assembly use these macros between `.option norvc` and `.option rvc`, so that every
 * instruction has 4 bytes. The end of a hardware loop is its last instruction; LP_SETUP takes how
 * many instructions the body has.
 */
#ifndef XPULP_H
#define XPULP_H

#define XPULP_BEGIN ".option push\n.balign 4\n.option norvc\n"
#define XPULP_END ".option pop\n"

/* Loop 0, `count` turns of the next `body` instructions. */
#define LP_SETUP(count, body) ".insn i 0x7b, 4, x0, " count ", (" #body ") * 2\n"

/* Loads and stores that add `step` to their address. */
#define P_LBU(rd, step, rs1) ".insn i 0x0b, 4, " rd ", " rs1 ", " #step "\n"
#define P_LHU(rd, step, rs1) ".insn i 0x0b, 5, " rd ", " rs1 ", " #step "\n"
#define P_LW(rd, step, rs1) ".insn i 0x0b, 2, " rd ", " rs1 ", " #step "\n"
#define P_SB(rs2, step, rs1) ".insn s 0x2b, 0, " rs2 ", " #step "(" rs1 ")\n"
#define P_SW(rs2, step, rs1) ".insn s 0x2b, 2, " rs2 ", " #step "(" rs1 ")\n"

/* Loads at rs1 + rs2. */
#define P_LBU_RR(rd, rs2, rs1) ".insn r 0x03, 7, 0x20, " rd ", " rs1 ", " rs2 "\n"
#define P_LW_RR(rd, rs2, rs1) ".insn r 0x03, 7, 0x10, " rd ", " rs1 ", " rs2 "\n"

/* Halves of two words: the lower ones, the upper ones; those of rs1 become the upper half. */
#define PV_PACK(rd, rs1, rs2) ".insn r 0x57, 0, 0x68, " rd ", " rs1 ", " rs2 "\n"
#define PV_PACK_HIGH(rd, rs1, rs2) ".insn r 0x57, 0, 0x69, " rd ", " rs1 ", " rs2 "\n"

/* `bits` bits of rs1 from `position`; the same from the lower end of rs1 into rd. */
#define P_INSERT(rd, rs1, bits, position) \
    ".insn r 0x33, 2, 0x60 + (" #bits ") - 1, " rd ", " rs1 ", x" #position "\n"

#endif
