//! Kernels of single sections.

use super::access::Place;
use super::{Geometry, Kernel, Start, Tuning, WARP, addresses, codes, finish, get, table};
use crate::program::sections::{Section, Sections};
use crate::program::words::THREAD_BYTES;
use crate::ptx::{Work, Writer};

/// Warps of a block.
const WARPS: u32 = 4;
/// Warps of a block if its code is long and others have other codes.
const WARPS_OF_LONG_CODE: u32 = 8;
/// Logic instructions of a long code.
const LONG_CODE: u32 = 600;

/// The kernel of a map that has only single sections.
pub(super) fn kernel(sections: &Sections, tuning: &Tuning) -> Kernel {
    let warps = tuning.warps.unwrap_or(WARPS);
    let kernel = with_warps(sections, tuning, warps);
    let is_long = |work: &Work| work.logic >= LONG_CODE;
    let long = kernel.work.len() > 1 && kernel.work.iter().any(is_long);
    match tuning.warps {
        None if long => with_warps(sections, tuning, WARPS_OF_LONG_CODE),
        _ => kernel,
    }
}

fn with_warps(sections: &Sections, tuning: &Tuning, warps: u32) -> Kernel {
    let units = sections.single.len() as u32;
    let tile_bytes = WARP * THREAD_BYTES;
    let geometry = Geometry { units, warps, tiles: warps, tile_bytes, shared_bytes: 0 };
    let mut writer = Writer::default();
    let start = Start::write(&mut writer, units);
    let Start { warp, rank, .. } = start;
    let tile = get(&mut writer, |to| format!("mad.lo.u32 {to}, {rank}, {warps}, {warp}"));
    let columns = start.columns(&mut writer, tile, start.lane, tile_bytes);
    let entry = table::at(&mut writer, start.table, start.unit, 8);
    let code = table::word(&mut writer, entry, 0);
    let first = table::word(&mut writer, entry, 4);
    let place = Place {
        pitch: start.pitch,
        inputs: addresses(&mut writer, start.inputs, &columns),
        outputs: addresses(&mut writer, start.outputs, &columns),
        stores: columns.map(|(exists, _)| exists),
        operands: table::at(&mut writer, start.table, first, 4),
        shared: None,
    };
    let end = writer.label();
    let users: Vec<&Section> = sections.single.iter().collect();
    let work = codes(&mut writer, (sections, &users), &place, code, end, tuning);
    writer.place(end);
    writer.line(format_args!("ret;"));
    let text = finish(&writer, &geometry, tuning);
    Kernel { text, table: table::of_sections(&sections.single), geometry, work }
}
