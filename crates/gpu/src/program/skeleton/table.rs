//! The table in device memory that names the elements of sections, in numbers of 32 bits.
//!
//! ```text
//! single sections   n times: code, place of the operands
//! components        n times: place of the component
//!   component       number of steps, then for each: number of items, place of the first
//!   item            code, place of its operands, number of sections
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

/// The table of components whose warps execute `at_once` sections at a time.
pub(super) fn of_components(components: &[Component], at_once: usize) -> Vec<u32> {
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
            let items = items(sections, at_once);
            table[steps_at + 2 * step] = items.len() as u32;
            table[steps_at + 2 * step + 1] = table.len() as u32;
            for item in items {
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
        let table = of_components(&[vec![step]], 2);
        // One component at 1, with one step of three items at 4.
        assert_eq!(table[..4], [1, 1, 3, 4]);
        assert_eq!(table[4..13], [0, 13, 2, 0, 15, 1, 1, 16, 1]);
        assert_eq!(table[13..], [1, 2, 3, 4]);
    }
}
