//! The table in device memory that names the elements of sections, in numbers of 32 bits.
//!
//! ```text
//! single sections   n times: code, place of the operands
//! components        n times: place of the component
//!   component       number of steps, then for each: number of items, place of the first
//!   item            code, place of its operands, number of sections, or 0 if it is empty
//! operands          of one section after the other
//! ```
//!
//! Places are indexes in the table.

use crate::program::sections::{Component, Section};
use crate::ptx::{Reg, Wide, Writer};

/// Numbers of an item.
pub(super) const ITEM_WORDS: u32 = 3;

/// Loads the number that lies `bytes` behind an address of the table.
pub(super) fn word(writer: &mut Writer, at: Wide, bytes: u32) -> Reg {
    let to = writer.reg();
    writer.memory(format_args!("ld.global.nc.u32 {to}, [{at}+{bytes}];"));
    to
}

/// The address `index` times `bytes` behind an address.
pub(super) fn at(writer: &mut Writer, base: Wide, index: Reg, bytes: u32) -> Wide {
    let to = writer.wide();
    writer.line(format_args!("mad.wide.u32 {to}, {index}, {bytes}, {base};"));
    to
}

/// The table of single sections.
pub(super) fn of_sections(sections: &[Section]) -> Vec<u32> {
    let mut table = Vec::new();
    let mut place = 2 * sections.len() as u32;
    for section in sections {
        table.extend([section.code as u32, place]);
        place += section.operands.len() as u32;
    }
    table.extend(sections.iter().flat_map(|section| &section.operands));
    table
}

/// The items of a step: at most `at_once` neighbouring sections with the same code.
pub(super) fn items(sections: &[Section], at_once: usize) -> Vec<&[Section]> {
    let alike = sections.chunk_by(|a, b| a.code == b.code);
    alike.flat_map(|alike| alike.chunks(at_once)).collect()
}

/// The items of a step in the order in which `warps` warps take turns at them. Each warp gets about
/// as much work: the longest item that is left goes to the warp that has the least. Empty items
/// stand where a warp has none. `lengths` has the instructions of each code.
fn balanced<'a>(
    sections: &'a [Section],
    at_once: usize,
    warps: usize,
    lengths: &[u32],
) -> Vec<Option<&'a [Section]>> {
    let mut items = items(sections, at_once);
    items.sort_by_key(|item| std::cmp::Reverse(lengths[item[0].code]));
    let mut shares: Vec<(u32, Vec<&[Section]>)> = vec![(0, Vec::new()); warps];
    for item in items {
        let least = shares.iter_mut().min_by_key(|(work, _)| *work);
        let (work, share) = least.expect("there are warps");
        *work += lengths[item[0].code];
        share.push(item);
    }
    let turns = shares.iter().map(|(_, share)| share.len()).max().unwrap_or(0);
    let turn = |turn: usize| shares.iter().map(move |(_, share)| share.get(turn).copied());
    (0..turns).flat_map(turn).collect()
}

/// The table of components whose warps, `warps` for a tile, execute `at_once` sections at a time.
pub(super) fn of_components(
    components: &[Component],
    at_once: usize,
    warps: usize,
    lengths: &[u32],
) -> Vec<u32> {
    let mut table = vec![0; components.len()];
    let mut operands: Vec<u32> = Vec::new();
    // Where the table has places of operands, which follow when the length of the rest is known.
    let mut places: Vec<(usize, usize)> = Vec::new();
    for (number, component) in components.iter().enumerate() {
        table[number] = table.len() as u32;
        table.push(component.len() as u32);
        let steps_at = table.len();
        table.resize(steps_at + 2 * component.len(), 0);
        for (step, sections) in component.iter().enumerate() {
            let items = balanced(sections, at_once, warps, lengths);
            table[steps_at + 2 * step] = items.len() as u32;
            table[steps_at + 2 * step + 1] = table.len() as u32;
            for item in items {
                let Some(item) = item else {
                    table.extend([0; ITEM_WORDS as usize]);
                    continue;
                };
                places.push((table.len() + 1, operands.len()));
                table.extend([item[0].code as u32, 0, item.len() as u32]);
                operands.extend(item.iter().flat_map(|section| &section.operands));
            }
        }
    }
    let behind = table.len();
    places.into_iter().for_each(|(at, place)| table[at] = (behind + place) as u32);
    table.extend(operands);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(code: usize, operands: &[u32]) -> Section {
        Section { code, operands: operands.to_vec() }
    }

    #[test]
    fn single_sections_name_their_operands() {
        let table = of_sections(&[section(0, &[7, 8]), section(1, &[9])]);
        assert_eq!(table, [0, 4, 1, 6, 7, 8, 9]);
    }

    #[test]
    fn sections_with_one_code_share_items() {
        let step = vec![section(0, &[1]), section(0, &[2]), section(0, &[3]), section(1, &[4])];
        let lengths: Vec<usize> = items(&step, 2).into_iter().map(<[Section]>::len).collect();
        assert_eq!(lengths, [2, 1, 1]);
        let table = of_components(&[vec![step]], 2, 2, &[10, 5]);
        // One component at 1, with one step of four items at 4. The first warp has two of them, so
        // the second has an empty one.
        assert_eq!(table[..4], [1, 1, 4, 4]);
        assert_eq!(table[4..16], [0, 16, 2, 0, 18, 1, 1, 19, 1, 0, 0, 0]);
        assert_eq!(table[16..], [1, 2, 3, 4]);
    }

    #[test]
    fn warps_get_equal_shares() {
        let step: Vec<Section> = (0..10).map(|at| section(usize::from(at >= 6), &[at])).collect();
        let order = balanced(&step, 1, 4, &[2, 1]);
        let of_warp = |warp: usize| -> u32 {
            let items = order.iter().skip(warp).step_by(4).flatten();
            items.map(|item| 2 - item[0].code as u32).sum()
        };
        assert_eq!([0, 1, 2, 3].map(of_warp), [4; 4]);
        assert_eq!(order.iter().flatten().count(), 10);
        assert_eq!(order.len(), 12);
    }
}
