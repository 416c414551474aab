//! The kernel around the codes of a map's sections: which thread does what, and where bytes are.
//!
//! All elements of a job lie in device memory one after the other, those of all input shards and
//! then those of all output shards, at distances of `pitch` bytes: the length of an element rounded
//! up to [`PITCH_ALIGN_BYTES`]. The bytes between elements are computed like the others, and
//! ignored.
//!
//! The columns of the elements are cut into *tiles*. Of a tile, each thread has two vectors of 16
//! bytes of each element. Neighbouring threads have neighbouring vectors, so a warp loads whole
//! lines. A thread whose vector lies behind the pitch loads the element's first vector instead, and
//! stores nothing.
//!
//! **Single sections** ([`single`]). Block b executes section b mod n, for n sections. Each of its
//! warps has another tile. Blocks with neighbouring numbers work on the same tiles at about the
//! same time, so an element that several sections read comes from memory once and from the cache
//! afterwards.
//!
//! **Components** ([`components`]). Block b executes component b mod n on a few tiles. In each step
//! the warps of a tile take turns to execute the sections of the step, and all warps wait for each
//! other at the end of it. Shared elements lie in shared memory in planes. Where a component has so
//! many that tiles of 1 KiB do not fit, tiles are narrower, and a warp executes several sections
//! with the same code at once, each with some of its lanes.
//!
//! **Instructions are fetched, too.** The code of a section is straight, and may be as long as the
//! cache for instructions of a multiprocessor's part. Warps that execute the same code at the same
//! time share what is fetched; others wait for it. So blocks with long codes have many warps, all
//! with the same code or with few of them.

mod access;
mod components;
mod single;
mod table;

use std::fmt::Write as _;

use self::access::{Access, Place};
use super::body::{Body, Method};
use super::sections::{Section, Sections};
use crate::ptx::{HEADER, Label, Pred, Reg, Wide, Work, Writer};

/// Elements begin at multiples of this number of bytes.
pub const PITCH_ALIGN_BYTES: u64 = 16;
/// Threads of a warp.
const WARP: u32 = 32;
/// The kernel's name.
pub(crate) const KERNEL: &str = "linear_map";

/// Choices that measurements made. Others are for measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The only method, if given.
    pub method: Option<Method>,
    /// Whether codes that differ in little are merged, if given.
    pub merge: Option<bool>,
    /// Inputs that are loaded before they are needed.
    pub ahead: usize,
    /// Warps of a block with single sections, if given.
    pub warps: Option<u32>,
    /// Tiles of a block with components.
    pub tiles: u32,
    /// Least blocks on a multiprocessor, which bounds the registers of a thread; 0 for no bound.
    pub resident_blocks_min: u32,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { method: None, merge: None, ahead: 6, warps: None, tiles: 1, resident_blocks_min: 0 }
    }
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Sections or components. The number of blocks is a multiple of this number.
    pub units: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Tiles of a block.
    pub tiles: u32,
    /// Bytes of an element in a tile.
    pub tile_bytes: u32,
    /// Shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

impl Geometry {
    /// The number of blocks for elements of `pitch` bytes.
    #[must_use]
    pub fn blocks(&self, pitch: u64) -> u32 {
        let groups = pitch.div_ceil(u64::from(self.tile_bytes * self.tiles));
        self.units * groups.max(1) as u32
    }

    /// Threads of a block.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.warps * WARP
    }
}

/// A kernel's text, its table and its shape.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) text: String,
    pub(crate) table: Vec<u32>,
    pub(crate) geometry: Geometry,
    /// Instructions of each code.
    pub(crate) work: Vec<Work>,
}

/// Writes the kernel of a map's sections, or `None` if a block's shared memory cannot hold the
/// shared elements.
pub(crate) fn kernel(sections: &Sections, tuning: &Tuning) -> Option<Kernel> {
    match sections.components.is_empty() {
        true => Some(single::kernel(sections, tuning)),
        false => components::kernel(sections, tuning),
    }
}

/// The text of a kernel whose body is written.
fn finish(writer: &Writer, geometry: &Geometry, tuning: &Tuning) -> String {
    let parameters = "\n  .param .u64 inputs, .param .u64 outputs,\n  \
                      .param .u64 table, .param .u32 pitch\n";
    let mut limits = format!(".maxntid {}, 1, 1", geometry.threads());
    if tuning.resident_blocks_min > 0 {
        let _ = write!(limits, "\n.minnctapersm {}", tuning.resident_blocks_min);
    }
    let shared = match geometry.shared_bytes {
        0 => "",
        _ => ".extern .shared .align 16 .b8 shared_elements[];\n",
    };
    format!("{HEADER}{shared}{}", writer.kernel(KERNEL, parameters, &limits))
}

/// An instruction that writes a new register.
fn get(writer: &mut Writer, line: impl FnOnce(Reg) -> String) -> Reg {
    let to = writer.reg();
    let line = line(to);
    writer.line(format_args!("{line};"));
    to
}

/// Instructions at the start of every kernel: parameters, the thread's warp and lane, and the
/// block's unit.
struct Start {
    inputs: Wide,
    outputs: Wide,
    table: Wide,
    pitch: Reg,
    lane: Reg,
    warp: Reg,
    /// The block's unit.
    unit: Reg,
    /// The block's number among those with the same unit.
    rank: Reg,
}

impl Start {
    fn write(writer: &mut Writer, units: u32) -> Self {
        writer.comment(format_args!("the block's unit, and the thread's place"));
        let [inputs, outputs, table] = ["inputs", "outputs", "table"].map(|name| {
            let to = writer.wide();
            writer.line(format_args!("ld.param.u64 {to}, [{name}];"));
            to
        });
        let pitch = get(writer, |to| format!("ld.param.u32 {to}, [pitch]"));
        let thread = get(writer, |to| format!("mov.u32 {to}, %tid.x"));
        let lane = get(writer, |to| format!("and.b32 {to}, {thread}, {}", WARP - 1));
        let warp = get(writer, |to| format!("shr.u32 {to}, {thread}, {}", WARP.ilog2()));
        let block = get(writer, |to| format!("mov.u32 {to}, %ctaid.x"));
        let unit = get(writer, |to| format!("rem.u32 {to}, {block}, {units}"));
        let rank = get(writer, |to| format!("div.u32 {to}, {block}, {units}"));
        Self { inputs, outputs, table, pitch, lane, warp, unit, rank }
    }

    /// The columns of a lane's two vectors in a tile: whether they exist, and a column that does.
    fn columns(
        &self,
        writer: &mut Writer,
        tile: Reg,
        lane: Reg,
        tile_bytes: u32,
    ) -> [(Pred, Reg); 2] {
        let at = get(writer, |to| format!("shl.b32 {to}, {lane}, 4"));
        let first = get(writer, |to| format!("mad.lo.u32 {to}, {tile}, {tile_bytes}, {at}"));
        let second = get(writer, |to| format!("add.u32 {to}, {first}, {}", tile_bytes / 2));
        [first, second].map(|column| {
            let (exists, pitch) = (writer.pred(), self.pitch);
            writer.line(format_args!("setp.lt.u32 {exists}, {column}, {pitch};"));
            (exists, get(writer, |to| format!("selp.b32 {to}, {column}, 0, {exists}")))
        })
    }
}

/// The addresses of columns of element 0.
fn addresses(writer: &mut Writer, base: Wide, columns: &[(Pred, Reg); 2]) -> [Wide; 2] {
    columns.map(|(_, column)| {
        let (offset, address) = (writer.wide(), writer.wide());
        writer.line(format_args!("cvt.u64.u32 {offset}, {column};"));
        writer.line(format_args!("add.u64 {address}, {base}, {offset};"));
        address
    })
}

/// A branch to the code with the number `code`.
fn dispatch(writer: &mut Writer, code: Reg, labels: &[Label]) {
    if labels.len() > 1 {
        let names: Vec<String> = labels.iter().map(Label::to_string).collect();
        writer.line(format_args!("codes: .branchtargets {};", names.join(", ")));
        writer.line(format_args!("brx.idx {code}, codes;"));
    }
}

/// Writes all codes. Each ends with a branch to `next`. Returns their instructions.
fn codes(
    writer: &mut Writer,
    (sections, users): (&Sections, &[&Section]),
    place: &Place,
    code: Reg,
    next: Label,
    tuning: &Tuning,
) -> Vec<Work> {
    let labels: Vec<Label> = sections.codes.iter().map(|_| writer.label()).collect();
    dispatch(writer, code, &labels);
    let mut works = Vec::new();
    for (number, (code, label)) in sections.codes.iter().zip(labels).enumerate() {
        writer.place(label);
        let mut of_code = users.iter().filter(|section| section.code == number);
        let (first, second) = (of_code.next(), of_code.next());
        let constants = first.filter(|_| second.is_none()).map(|section| &section.operands[..]);
        let access = Access::new(writer, place, code, constants);
        let before = writer.work();
        Body::write(writer, code, &access, tuning.ahead, tuning.method);
        works.push(writer.work().since(before));
        writer.line(format_args!("bra.uni {next};"));
    }
    works
}
