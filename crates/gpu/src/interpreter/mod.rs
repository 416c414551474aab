//! An interpreter of PTX, so that GPU programs can be tested where there is no card.
//!
//! [`Module::parse`] reads a text and decodes its kernels, and [`run`] executes a kernel on the
//! threads of a launch. Only 1-dimensional grids and blocks exist. The subset is integers: no
//! floating point, no local memory, no calls. What is not of the subset is an error of the parser,
//! which names the line.
//!
//! The interpreter is stricter than a card. A card gives some result when a program reads what no
//! thread wrote, accesses memory outside of its allocations, or has a race, and often the result is
//! the expected one. Here each of these is a [`Fault`], which names the instruction and the thread.
//! Execution has one order, so a fault that happens once happens always.
//!
//! The threads of a block execute one after the other, each until it waits or ends. That is no
//! order that a program may rely on, and the races tell if one does.
//!
//! | module       | idea |
//! |--------------|------|
//! | `token`      | text becomes tokens |
//! | `reader`     | tokens, one after the other, and operands as they are written |
//! | `parse`      | modules: header, tables |
//! | `body`       | kernels: parameters, declarations, labels, instructions |
//! | `scope`      | names of a kernel, and the cells that they have |
//! | `types`      | the types that instructions name |
//! | `decode`     | a mnemonic and its operands become an operation |
//! | `operation`  | decoded instructions |
//! | `arithmetic` | functions of values: arithmetic, shifts, comparisons |
//! | `bits`       | functions of values: permutes, funnels, fields |
//! | `kernel`     | modules and kernels, decoded |
//! | `execute`    | one thread, until it waits |
//! | `collective` | lanes of a warp that wait for each other: shuffles, votes |
//! | `launch`     | blocks, warps and barriers |
//! | `memory`     | global memory |
//! | `trace`      | races in global memory |
//! | `shared`     | shared memory, and races in it |
//! | `fault`      | what can be wrong |

mod arithmetic;
mod bits;
mod body;
mod collective;
mod decode;
mod execute;
mod fault;
mod kernel;
mod launch;
mod memory;
mod operation;
mod parse;
mod reader;
mod scope;
mod shared;
mod token;
mod trace;
mod types;

#[cfg(test)]
mod tests;

pub use fault::{Access, Cause, Fault, MemoryError, Nearest, ParseError};
pub use kernel::{Kernel, Module};
pub use launch::{Launch, Param, Statistics, run};
pub use memory::Memory;
