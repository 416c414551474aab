//! DeLiBA-K's numbers for the work that the device does, and the notes that a comparison needs.
//!
//! Section IV-B defines the paper's cycles: those of four operations together, namely rule
//! evaluation, hash computation, data mapping and replication. A whole placement is comparable with
//! such a number. A bucket kernel alone is only a part of a placement, so no number of a paper is
//! compared with a kernel.
//!
//! Table I prints cycles and a time for each algorithm. The time is that of a data object from its
//! entry to its replication, so it cannot be shorter than the cycles at the clock, which is about
//! 235 MHz. In most rows it is shorter: [`Published::implied_mhz`] is the clock that both columns
//! together would need. The caption calls both columns estimates. The paper gives neither the items
//! of a bucket nor the replicas. For its Reed-Solomon encoder, it gives neither k and m nor the
//! length of the data.

use serde_json::{Value, json};

use crate::row::Row;

/// The source of the cycles.
const REFERENCE: &str = "DeLiBA-K, Table I, RTL cycles";
/// The clock of the paper's accelerators (section IV-B: "approximately").
pub const STATED_MHZ: f64 = 235.0;

/// A row of DeLiBA-K's Table I: minimum and maximum, as printed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// "Vivado 2024 RTL Cycles".
    pub cycles: [f64; 2],
    /// "Vivado 2024 Latency", in microseconds.
    pub microseconds: [f64; 2],
}

/// One straw bucket.
pub const STRAW: Published = Published { cycles: [105.0, 105.0], microseconds: [0.345, 0.355] };
/// One straw2 bucket.
pub const STRAW2: Published = Published { cycles: [155.0, 155.0], microseconds: [0.315, 0.315] };
/// One list bucket.
pub const LIST: Published = Published { cycles: [40.0, 40.0], microseconds: [0.161, 0.161] };
/// One tree bucket.
pub const TREE: Published = Published { cycles: [130.0, 130.0], microseconds: [0.115, 0.115] };
/// One uniform bucket.
pub const UNIFORM: Published = Published { cycles: [40.0, 50.0], microseconds: [0.180, 0.180] };
/// The Reed-Solomon encoder.
pub const ENCODER: Published = Published { cycles: [150.0, 150.0], microseconds: [0.345, 0.345] };

impl Published {
    /// The clock in MHz at which the printed cycles take the printed time: lowest and highest.
    pub fn implied_mhz(&self) -> [f64; 2] {
        let [min, max] = self.cycles;
        let [shortest, longest] = self.microseconds;
        [min / longest, max / shortest]
    }

    /// Adds the paper's numbers to a row that measures the same work. `paper` is the smallest
    /// number of cycles, the better one for the paper.
    pub fn add_to(&self, row: &mut Row) {
        let mhz = self.implied_mhz().map(f64::round);
        let note = format!(
            "{} cycles in {} us would be {} MHz; section IV-B says about {STATED_MHZ} MHz",
            range(self.cycles, 0),
            range(self.microseconds, 3),
            range(mhz, 0),
        );
        let fields: [(&str, Value); 7] = [
            ("paper_note", json!(note)),
            ("paper", json!(self.cycles[0])),
            ("paper_ref", json!(REFERENCE)),
            ("paper_cycles", json!(self.cycles)),
            ("paper_us", json!(self.microseconds)),
            ("paper_implied_mhz", json!(mhz)),
            ("paper_stated_mhz", json!(STATED_MHZ)),
        ];
        row.more.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    }
}

/// A note that a reader needs before comparing a row with another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A bucket kernel without the rest of a placement.
    KernelAlone,
    /// A whole placement, which DeLiBA-K's cycles count.
    WholePlacement,
    /// The encoder with constant coefficients.
    NotInDevice,
    /// The codes engine, to its first parity.
    FirstParity,
    /// A share of the bandwidth of the model's card memory.
    CardMemory,
}

impl Note {
    /// All notes, in the order in which the table explains them.
    pub const ALL: [Self; 5] = [
        Self::KernelAlone,
        Self::WholePlacement,
        Self::FirstParity,
        Self::NotInDevice,
        Self::CardMemory,
    ];

    /// The label in the table.
    pub fn label(self) -> &'static str {
        match self {
            Self::KernelAlone => "kernel alone",
            Self::WholePlacement => "whole placement",
            Self::NotInDevice => "not in the device",
            Self::FirstParity => "first parity",
            Self::CardMemory => "card memory",
        }
    }

    /// The text under the table and in the JSON rows.
    pub fn text(self) -> &'static str {
        match self {
            Self::KernelAlone => {
                "one draw of one of 64 items by a bucket kernel of the device, from its request to \
                 its answer. It is a part of a placement. DeLiBA-K prints no cycles of a kernel \
                 alone, so no number of it stands here"
            }
            Self::WholePlacement => {
                "a PLACE of one input from its start to its end: rule, hash, mapping to one of 64 \
                 items, card memory read and written. DeLiBA-K (section IV-B) counts rule \
                 evaluation, hash computation, data mapping and replication. It does not say of \
                 how many items and replicas; ours is one replica and copies no data"
            }
            Self::NotInDevice => {
                "an encoder with constant coefficients, simulated by itself: no job can reach it. \
                 It has no program to read, and takes 64 bytes of each of 8 sources in one cycle, \
                 where the device's port of card memory gives 64 bytes"
            }
            Self::FirstParity => {
                "the codes engine of the device: at most so many cycles from the start of a CODE \
                 to its first 64 bytes of parity at card memory, program and data read from there. \
                 DeLiBA-K prints neither k and m nor the length of the data"
            }
            Self::CardMemory => {
                "a share of a memory that no single channel is. The model reads 64 bytes and \
                 writes 64 bytes in the same cycle, and never refreshes, misses a row or turns its \
                 bus around: 32 GB/s at 250 MHz. One channel of DDR4-2400 moves 19.2 GB/s at most, \
                 one HBM2 pseudo channel about 14 GB/s, reads and writes together"
            }
        }
    }

    /// Adds the note to a row.
    pub fn on(self, mut row: Row) -> Row {
        row.more.insert("note".to_owned(), json!(self.text()));
        row
    }

    /// The label of a row's note; empty without a note.
    pub fn label_of(row: &Row) -> &'static str {
        let text = row.more.get("note").and_then(Value::as_str);
        let note = Self::ALL.into_iter().find(|note| Some(note.text()) == text);
        note.map_or("", Self::label)
    }
}

/// The contradiction in Table I, as text.
pub fn contradiction() -> String {
    let rows = [
        ("straw2", STRAW2),
        ("straw", STRAW),
        ("list", LIST),
        ("tree", TREE),
        ("uniform", UNIFORM),
        ("Reed-Solomon", ENCODER),
    ];
    let needed = rows.map(|(name, row)| format!("{name} {}", range(row.implied_mhz(), 0)));
    let [cycles, _] = STRAW2.cycles;
    let [microseconds, _] = STRAW2.microseconds;
    let [mhz, _] = STRAW2.implied_mhz();
    format!(
        "Table I contradicts its clock: {cycles} cycles in {microseconds} us would be {mhz:.0} \
         MHz, section IV-B says about {STATED_MHZ} MHz, where they take {:.2} us. MHz by its rows: \
         {}. Its caption calls cycles and time estimates. Ours are cycles of a simulation; `fpga \
         report` says what is known of the clock",
        cycles / STATED_MHZ,
        needed.join(", "),
    )
}

/// A range as text; one number if both ends are the same.
pub fn range([min, max]: [f64; 2], digits: usize) -> String {
    let [min, max] = [min, max].map(|number| format!("{number:.digits$}"));
    if min == max { min } else { format!("{min}-{max}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Better;

    fn row() -> Row {
        Row::new("fpga", "x".to_owned(), "cycles", Better::Less, (Some(189.0), None))
    }

    #[test]
    fn table_i_contradicts_its_clock() {
        let mhz = |row: Published| row.implied_mhz().map(|mhz| mhz.round() as u64);
        assert_eq!(mhz(STRAW2), [492, 492]);
        assert_eq!(mhz(STRAW), [296, 304]);
        assert_eq!(mhz(LIST), [248, 248]);
        assert_eq!(mhz(TREE), [1130, 1130]);
        assert_eq!(mhz(UNIFORM), [222, 278]);
        assert_eq!(mhz(ENCODER), [435, 435]);
        let text = contradiction();
        for part in ["155 cycles in 0.315 us", "492 MHz", "235 MHz", "tree 1130", "straw 296-304"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn a_published_number_is_compared_with_its_range_and_its_clock() {
        let mut row = row();
        UNIFORM.add_to(&mut row);
        assert_eq!(row.more["paper"], json!(40.0));
        assert_eq!(row.more["paper_cycles"], json!([40.0, 50.0]));
        assert_eq!(row.more["paper_implied_mhz"], json!([222.0, 278.0]));
        assert_eq!(row.more["paper_stated_mhz"], json!(235.0));
        let note = "40-50 cycles in 0.180 us would be 222-278 MHz; section IV-B says about 235 MHz";
        assert_eq!(row.more["paper_note"], json!(note));
        assert!(row.more["paper_ref"].as_str().is_some_and(|text| text.contains("Table I")));
    }

    #[test]
    fn every_note_is_found_again_by_its_text() {
        for note in Note::ALL {
            let row = note.on(row());
            assert_eq!(Note::label_of(&row), note.label());
        }
        assert_eq!(Note::label_of(&row()), "");
    }

    #[test]
    fn ranges_are_short() {
        assert_eq!(range([155.0, 155.0], 0), "155");
        assert_eq!(range([0.345, 0.355], 3), "0.345-0.355");
    }
}
