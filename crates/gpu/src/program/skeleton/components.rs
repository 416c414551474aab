//! Kernels of components.

use super::access::{Place, SharedPlace};
use super::{Geometry, Kernel, Start, Tuning, WARP, addresses, codes, finish, get, table};
use crate::program::sections::{Component, Section, Sections};
use crate::program::words::THREAD_BYTES;
use crate::ptx::{Label, Pred, Reg, Work, Writer};

/// Most shared memory of a block, so that several blocks share a multiprocessor.
const SHARED_BYTES_MAX: u32 = 64 << 10;
/// Warps of a tile, if no step has many items, and if one has.
const WARPS_OF_TILE: u32 = 4;
const WARPS_OF_TILE_MAX: u32 = 8;

/// The kernel of a map that has components. Single sections are components of one step. `None` if
/// the shared elements do not fit.
pub(super) fn kernel(sections: &Sections, tuning: &Tuning) -> Option<Kernel> {
    let bytes = |lanes: u32| u64::from(sections.shared_max) * u64::from(lanes * THREAD_BYTES);
    let fits = |lanes: &u32| bytes(*lanes) <= u64::from(SHARED_BYTES_MAX);
    let lanes = [32, 16, 8, 4, 2, 1].into_iter().find(fits)?;
    let alone = sections.single.iter().map(|section| vec![vec![section.clone()]]);
    let all: Vec<Component> = sections.components.iter().cloned().chain(alone).collect();
    let at_once = (WARP / lanes) as usize;
    let widest = all.iter().flatten().map(|step| table::items(step, at_once).len()).max()?;
    let warps_of_tile = match widest as u32 >= 2 * WARPS_OF_TILE_MAX {
        true => WARPS_OF_TILE_MAX,
        false => WARPS_OF_TILE,
    };
    let (tile_bytes, shared_of_tile) = (lanes * THREAD_BYTES, bytes(lanes) as u32);
    let tiles = tuning.tiles.min(SHARED_BYTES_MAX / shared_of_tile.max(1)).max(1);
    let geometry = Geometry {
        units: all.len() as u32,
        warps: warps_of_tile * tiles,
        tiles,
        tile_bytes,
        shared_bytes: shared_of_tile * tiles,
    };
    let mut writer = Writer::default();
    let loops = Loops { sections, geometry, lanes, warps_of_tile };
    let work = loops.write(&mut writer, &all, tuning);
    let text = finish(&writer, &geometry, tuning);
    let lengths: Vec<u32> = work.iter().map(|work| work.total()).collect();
    let table = table::of_components(&all, at_once, warps_of_tile as usize, &lengths);
    Some(Kernel { text, table, geometry, work })
}

/// The loops over steps and items around the codes.
struct Loops<'a> {
    sections: &'a Sections,
    geometry: Geometry,
    /// Lanes of a section.
    lanes: u32,
    warps_of_tile: u32,
}

/// What the item loop needs of the thread.
struct Thread {
    /// The number of the warp among those of its tile.
    warp: Reg,
    /// Which section of an item the lane has, if there are so many.
    part: Reg,
    columns: [(Pred, Reg); 2],
    /// The thread's first vector of shared element 0.
    shared: Reg,
}

impl Loops<'_> {
    fn write(&self, writer: &mut Writer, all: &[Component], tuning: &Tuning) -> Vec<Work> {
        let start = Start::write(writer, self.geometry.units);
        let thread = self.thread(writer, &start);
        let entry = table::at(writer, start.table, start.unit, 4);
        let component = table::word(writer, entry, 0);
        let record = table::at(writer, start.table, component, 4);
        let steps = table::word(writer, record, 0);
        let [next_step, step_done] = std::array::from_fn(|_| writer.label());
        let step = get(writer, |to| format!("mov.u32 {to}, 0"));
        writer.place(next_step);
        let at_step = table::at(writer, record, step, 8);
        let work = self.items(writer, &start, &thread, (all, at_step), step_done, tuning);
        writer.place(step_done);
        writer.comment(format_args!("the next step reads what this one wrote"));
        writer.line(format_args!("bar.sync 0;"));
        writer.line(format_args!("add.u32 {step}, {step}, 1;"));
        let more = writer.pred();
        writer.line(format_args!("setp.lt.u32 {more}, {step}, {steps};"));
        writer.line(format_args!("@{more} bra {next_step};"));
        writer.line(format_args!("ret;"));
        work
    }

    fn thread(&self, writer: &mut Writer, start: &Start) -> Thread {
        let Geometry { tiles, tile_bytes, shared_bytes, .. } = self.geometry;
        let (warps, lanes, shared_of_tile) = (self.warps_of_tile, self.lanes, shared_bytes / tiles);
        let (all_lanes, all_warps, rank) = (start.lane, start.warp, start.rank);
        let part = get(writer, |to| format!("shr.u32 {to}, {all_lanes}, {}", lanes.ilog2()));
        let lane = get(writer, |to| format!("and.b32 {to}, {all_lanes}, {}", lanes - 1));
        let of_block = get(writer, |to| format!("div.u32 {to}, {all_warps}, {warps}"));
        let warp = get(writer, |to| format!("rem.u32 {to}, {all_warps}, {warps}"));
        let tile = get(writer, |to| format!("mad.lo.u32 {to}, {rank}, {tiles}, {of_block}"));
        let all = get(writer, |to| format!("mov.u32 {to}, shared_elements"));
        let own = get(writer, |to| format!("mad.lo.u32 {to}, {of_block}, {shared_of_tile}, {all}"));
        let shared = get(writer, |to| format!("mad.lo.u32 {to}, {lane}, 16, {own}"));
        let columns = start.columns(writer, tile, lane, tile_bytes);
        Thread { warp, part, columns, shared }
    }

    /// The loop over the items of a step.
    fn items(
        &self,
        writer: &mut Writer,
        start: &Start,
        thread: &Thread,
        (all, at_step): (&[Component], crate::ptx::Wide),
        step_done: Label,
        tuning: &Tuning,
    ) -> Vec<Work> {
        let items = table::word(writer, at_step, 4);
        let first = table::word(writer, at_step, 8);
        let warp = thread.warp;
        let item = get(writer, |to| format!("mov.u32 {to}, {warp}"));
        let [again, next] = std::array::from_fn(|_| writer.label());
        writer.place(again);
        let done = writer.pred();
        writer.line(format_args!("setp.ge.u32 {done}, {item}, {items};"));
        writer.line(format_args!("@{done} bra {step_done};"));
        let words = table::ITEM_WORDS;
        let number = get(writer, |to| format!("mad.lo.u32 {to}, {item}, {words}, {first}"));
        let at_item = table::at(writer, start.table, number, 4);
        let code = table::word(writer, at_item, 0);
        let operands = table::word(writer, at_item, 4);
        let count = table::word(writer, at_item, 8);
        let empty = writer.pred();
        writer.line(format_args!("setp.eq.u32 {empty}, {count}, 0;"));
        writer.line(format_args!("@{empty} bra {next};"));
        let place = self.place(writer, start, thread, (operands, count));
        let users: Vec<&Section> = all.iter().flatten().flatten().collect();
        let work = codes(writer, (self.sections, &users), &place, code, next, tuning);
        writer.place(next);
        writer.line(format_args!("add.u32 {item}, {item}, {};", self.warps_of_tile));
        writer.line(format_args!("bra.uni {again};"));
        work
    }

    /// The operands of an item with `count` sections.
    fn place(
        &self,
        writer: &mut Writer,
        start: &Start,
        thread: &Thread,
        (operands, count): (Reg, Reg),
    ) -> Place {
        let (part, has_section) = (thread.part, writer.pred());
        writer.line(format_args!("setp.lt.u32 {has_section}, {part}, {count};"));
        let section = get(writer, |to| format!("selp.b32 {to}, {part}, 0, {has_section}"));
        let stores = thread.columns.map(|(exists, _)| {
            let both = writer.pred();
            writer.line(format_args!("and.pred {both}, {exists}, {has_section};"));
            both
        });
        let vector_bytes = self.lanes * THREAD_BYTES / 2;
        Place {
            pitch: start.pitch,
            inputs: addresses(writer, start.inputs, &thread.columns),
            outputs: addresses(writer, start.outputs, &thread.columns),
            stores,
            operands: table::at(writer, start.table, operands, 4),
            shared: Some(SharedPlace { base: thread.shared, vector_bytes, section, has_section }),
        }
    }
}
