//! Programs that test the interpreter.

mod control;
mod faults;
mod instructions;
mod parsing;
mod spaces;
mod speed;
mod warps;

use super::{Cause, Fault, Launch, Memory, Module, Param, Statistics, run};

const HEAD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";

/// Registers of all kinds for the body of a kernel.
const REGISTERS: &str = ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<20>; .reg .b64 %d<20>;";

/// The text of a module with one kernel `test`, whose first parameter is the address `out`. The
/// declarations come before the kernel. The address is in `%d19`. Lines of the body begin at 6.
fn text(declarations: &str, body: &str) -> String {
    format!(
        "{HEAD}{declarations}\n.visible .entry test(.param .u64 out) {{ {REGISTERS} \
         ld.param.u64 %d19, [out];\n{body}\n}}\n"
    )
}

/// Runs a kernel `test` on new memory with room for some words at `out`. Returns these words.
fn words(text: &str, launch: &Launch, count: usize) -> Result<(Vec<u32>, Statistics), Fault> {
    let module = Module::parse(text).unwrap();
    let mut memory = Memory::new();
    let out = memory.alloc(4 * count);
    let launch = Launch { params: vec![Param::U64(out)], ..launch.clone() };
    let statistics = run(module.kernel("test").unwrap(), &launch, &mut memory)?;
    memory.allow_uninitialised(true);
    let bytes = memory.read(out, 4 * count).unwrap();
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    Ok((bytes.chunks(4).map(word).collect(), statistics))
}

/// The words at `out` after a launch of one block.
fn block_words(declarations: &str, body: &str, threads: u32) -> Vec<u32> {
    let launch = Launch { block: threads, ..Launch::default() };
    let found = words(&text(declarations, body), &launch, threads as usize);
    found.unwrap_or_else(|fault| panic!("{fault}")).0
}

/// The fault of a launch of one block.
fn fault(declarations: &str, body: &str, threads: u32) -> Fault {
    let launch = Launch { block: threads, ..Launch::default() };
    words(&text(declarations, body), &launch, 64).unwrap_err()
}

/// What happened in a launch of one block.
fn cause(declarations: &str, body: &str, threads: u32) -> Cause {
    *fault(declarations, body, threads).cause
}

/// A store of a register of 32 bits to the thread's word at `out`.
fn store_own(register: &str) -> String {
    format!(
        "mov.u32 %r19, %tid.x; mul.wide.u32 %d18, %r19, 4; add.u64 %d18, %d19, %d18; \
         st.global.u32 [%d18], {register}; ret;"
    )
}
