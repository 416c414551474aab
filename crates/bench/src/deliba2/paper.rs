//! The paper's numbers, from `paper.json`.
//!
//! The file has the cells of the paper's tables and the numbers of its sentences, as printed. The
//! text that this project has of the paper does not have the bars of its charts. So a point of a
//! chart has a number here only if a sentence or a table prints it; no number was read off a chart.
//! Numbers that follow from two printed ones are marked as derived.

use anyhow::{Context, bail};
use serde::Deserialize;

use super::case::{Mode, paper_name};
use crate::fio::Pattern;

/// The short name in reports and rows.
pub const NAME: &str = "DeLiBA-2";

const FILE: &str = include_str!("paper.json");

/// The set-up that a number of the paper is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Of {
    /// Ceph's client in software, behind the kernel's NBD client.
    Software,
    /// The same with the FPGA: placement or coding, and the network, in hardware.
    Hardware,
}

impl Of {
    /// The name in rows and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Software => "software",
            Self::Hardware => "hardware",
        }
    }
}

/// What a number is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// MB/s.
    Throughput,
    /// I/Os per second.
    Iops,
    /// Mean latency, in microseconds.
    Latency,
    /// Standard deviation of the throughput over the runs. The paper prints no unit.
    Deviation,
    /// Throughput of the hardware over that of the software.
    ThroughputGain,
    /// I/Os per second of the hardware over those of the software.
    IopsGain,
    /// Part of the latency, in per cent.
    Share,
}

impl Quantity {
    /// The unit in rows.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Throughput => "MB/s",
            Self::Iops => "IOPS",
            Self::Latency => "us",
            Self::Deviation => "MB/s (standard deviation)",
            Self::ThroughputGain => "times the throughput of librbd",
            Self::IopsGain => "times the IOPS of librbd",
            Self::Share => "% of the latency",
        }
    }

    /// The title of a table or an axis.
    pub fn title(self) -> &'static str {
        match self {
            Self::Throughput => "throughput (MB/s)",
            Self::Iops => "I/Os per second",
            Self::Latency => "mean latency (us)",
            Self::Deviation => "standard deviation of the throughput (MB/s)",
            Self::ThroughputGain => "throughput over that of librbd",
            Self::IopsGain => "I/Os per second over those of librbd",
            Self::Share => "part of the latency (%)",
        }
    }
}

/// A number of the paper.
#[derive(Clone, Debug, PartialEq)]
pub struct Number {
    /// The number.
    pub value: f64,
    /// Its standard deviation, if it is printed.
    pub deviation: Option<f64>,
    /// The characters in the paper, or how the number follows from printed ones.
    pub printed: String,
    /// Where it is.
    pub place: String,
    /// True if it is not printed itself.
    pub is_derived: bool,
}

/// A number, and the point that it belongs to.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    quantity: Quantity,
    of: Of,
    mode: Option<Mode>,
    pattern: Option<Pattern>,
    block_bytes: u64,
    stage: Option<String>,
    number: Number,
}

/// The numbers of the paper.
#[derive(Clone, Debug, PartialEq)]
pub struct Paper {
    entries: Vec<Entry>,
}

/// A point of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// How the data is protected.
    pub mode: Mode,
    /// Order and direction of the accesses.
    pub pattern: Pattern,
    /// Bytes of one access.
    pub block_bytes: u64,
}

impl Paper {
    /// Reads the file that this program brings along.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn read() -> anyhow::Result<Self> {
        Self::parse(FILE).context("the paper's numbers (paper.json)")
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let file: File = serde_json::from_str(text)?;
        let mut entries = Vec::new();
        for table in &file.tables {
            for row in &table.rows {
                table.read_row(row, &file.patterns, &mut entries).with_context(|| {
                    format!("{}, row {:?}", table.name, row.first().map_or("", String::as_str))
                })?;
            }
        }
        for point in file.points {
            let what = point.printed.clone();
            entries.push(point.entry().context(what)?);
        }
        Ok(Self { entries })
    }

    /// The number of a point, printed or derived.
    pub fn number(&self, quantity: Quantity, of: Of, point: Point) -> Option<Number> {
        let printed = self.printed(quantity, of, point);
        match quantity {
            Quantity::ThroughputGain if printed.is_none() => self.derived_gain(point),
            _ => printed,
        }
    }

    fn printed(&self, quantity: Quantity, of: Of, point: Point) -> Option<Number> {
        let found = self.entries.iter().find(|entry| {
            (entry.quantity, entry.of) == (quantity, of)
                && entry.mode == Some(point.mode)
                && entry.pattern == Some(point.pattern)
                && entry.block_bytes == point.block_bytes
        });
        found.map(|entry| entry.number.clone())
    }

    /// The gain that follows from the throughputs of both tables.
    fn derived_gain(&self, point: Point) -> Option<Number> {
        let hardware = self.printed(Quantity::Throughput, Of::Hardware, point)?;
        let software = self.printed(Quantity::Throughput, Of::Software, point)?;
        Some(Number {
            value: crate::stats::quotient(hardware.value, software.value)?,
            deviation: None,
            printed: format!("{} over {}", hardware.printed, software.printed),
            place: format!("{} over {}", hardware.place, software.place),
            is_derived: true,
        })
    }

    /// The part of a stage of Fig. 6, which is a mean over the four patterns.
    pub fn stage(&self, stage: &str) -> Option<Number> {
        let mut entries = self.entries.iter();
        let found = entries.find(|entry| entry.stage.as_deref() == Some(stage));
        found.map(|entry| entry.number.clone())
    }

    /// The best throughput of Fig. 7.
    pub fn best_of_cores(&self, pattern: Pattern) -> Option<Number> {
        let found = self
            .entries
            .iter()
            .find(|entry| entry.number.place.contains("Fig. 7") && entry.pattern == Some(pattern));
        found.map(|entry| entry.number.clone())
    }
}

/// `paper.json`.
#[derive(Deserialize)]
struct File {
    patterns: Vec<String>,
    tables: Vec<PaperTable>,
    points: Vec<PaperPoint>,
}

#[derive(Deserialize)]
struct PaperTable {
    name: String,
    measure: Quantity,
    /// "software", "hardware", or "both" if the rows say so.
    of: String,
    rows: Vec<Vec<String>>,
}

/// A number of a sentence.
#[derive(Deserialize)]
struct PaperPoint {
    figure: String,
    measure: Quantity,
    of: Of,
    mode: Option<String>,
    pattern: Option<String>,
    block: String,
    stage: Option<String>,
    printed: String,
    place: String,
}

impl PaperTable {
    /// Reads a row: its name, such as "16 kB (replication)" or "4 kB, SW (EC)", and four cells.
    fn read_row(
        &self,
        row: &[String],
        patterns: &[String],
        entries: &mut Vec<Entry>,
    ) -> anyhow::Result<()> {
        let (name, cells) = row.split_first().context("the row is empty")?;
        if cells.len() != patterns.len() {
            bail!("it has {} cells, not {}", cells.len(), patterns.len());
        }
        let (block, rest) = name.split_once('(').context("no mode")?;
        let mode = mode_of(rest.trim_end_matches(')'))?;
        let of = match (self.of.as_str(), block.contains("SW"), block.contains("HW")) {
            ("software", ..) | ("both", true, _) => Of::Software,
            ("hardware", ..) | ("both", _, true) => Of::Hardware,
            _ => bail!("neither software nor hardware"),
        };
        let block_bytes = bytes_of(block.split(',').next().unwrap_or_default())?;
        for (pattern, cell) in patterns.iter().zip(cells) {
            let (value, deviation) = value_of(cell)?;
            entries.push(Entry {
                quantity: self.measure,
                of,
                mode: Some(mode),
                pattern: Some(pattern_of(pattern)?),
                block_bytes,
                stage: None,
                number: Number {
                    value,
                    deviation,
                    printed: cell.clone(),
                    place: format!("{NAME}, {}", self.name),
                    is_derived: false,
                },
            });
        }
        Ok(())
    }
}

impl PaperPoint {
    fn entry(self) -> anyhow::Result<Entry> {
        let (value, deviation) = value_of(&self.printed)?;
        Ok(Entry {
            quantity: self.measure,
            of: self.of,
            mode: self.mode.as_deref().map(mode_of).transpose()?,
            pattern: self.pattern.as_deref().map(pattern_of).transpose()?,
            block_bytes: bytes_of(&self.block)?,
            stage: self.stage,
            number: Number {
                value,
                deviation,
                printed: self.printed,
                place: format!("{NAME}, {}, of {}", self.place, self.figure),
                is_derived: false,
            },
        })
    }
}

/// The number of a cell, and its standard deviation: "68 MB/s", "65 (SD:0.782)", ".812", "9,000
/// IOPS", "47.25%", "2.81x".
fn value_of(cell: &str) -> anyhow::Result<(f64, Option<f64>)> {
    let number = |text: &str| {
        let digits: String = text
            .trim_start()
            .chars()
            .take_while(|c| c.is_ascii_digit() || matches!(c, '.' | ','))
            .filter(|c| *c != ',')
            .collect();
        digits.parse::<f64>().with_context(|| format!("{text:?} is no number"))
    };
    let (value, rest) = cell.split_once("(SD:").unwrap_or((cell, ""));
    let deviation = if rest.is_empty() { None } else { Some(number(rest)?) };
    Ok((number(value)?, deviation))
}

fn bytes_of(block: &str) -> anyhow::Result<u64> {
    let kb = block.trim().strip_suffix(" kB").with_context(|| format!("{block:?} is no size"))?;
    Ok(kb.parse::<u64>()? << 10)
}

fn mode_of(text: &str) -> anyhow::Result<Mode> {
    match text {
        "replication" => Ok(Mode::Replication),
        "EC" => Ok(Mode::Ec),
        _ => bail!("{text:?} is no mode"),
    }
}

fn pattern_of(text: &str) -> anyhow::Result<Pattern> {
    let found = Pattern::ALL.into_iter().find(|pattern| paper_name(*pattern) == text);
    found.with_context(|| format!("{text:?} is no pattern"))
}

/// What the paper says beside its numbers, and what this project makes of it. Each has its place.
pub const STATEMENTS: [(&str, &str); 12] = [
    (
        "a single client with 6 cores and a cluster with 8 drives [...] AMD EPYC Rome 7302P \
         16-core CPU [...] For our 10 GbE network, the bandwidth performance range \
         we achieved is 9.2 Gb/s",
        "section 3.3, of the software baseline",
    ),
    (
        "an AMD EPYC 7443P 24-Core Processor with 128 GB of memory, attached by 10 Gb/s Ethernet",
        "section 6, the client with the Alveo U280",
    ),
    (
        "All three major measurements i.e. throughput, KIOPS and latency are average measurements \
         of four multiple runs",
        "section 6",
    ),
    (
        "when using Ceph natively without nbd, our measurements showed the latency between 90 and \
         95 us for 128 kB",
        "section 3.3.1; Table 3 has 111 to 232 us for 128 kB behind NBD",
    ),
    (
        "using Ceph natively, without the nbd relay to user-space, achieves roughly 800 MB/s",
        "section 3.3.2, of 512 kB",
    ),
    (
        "four distinct non-direct (buffered) block I/O request patterns",
        "section 3.3.1, of Fig. 6. The paper's page cache is in front of its device, ours is not: \
         fio's nbd engine and embed have no page cache of the client",
    ),
    (
        "4 KB sequential reads and 4 KB sequential writes at an iodepth of 64",
        "section 3.3.4, of Fig. 7. No other figure has its depth printed",
    ),
    (
        "The maximum throughput for 4K read stalls at 45 MB/s [...] 4K writes tops out at 30 MB/s",
        "section 3.3.4, of Fig. 7; the cores at which they do are only in the chart",
    ),
    (
        "speed-up the throughput by up to 2.81x for sequential writes of 4 kB blocks, and by 1.16x \
         for sequential writes of 128 kB blocks",
        "section 6. The next paragraph has a gain of 1.5x in IOPS for the same 128 kB writes, and \
         both are bytes over the same block size",
    ),
    (
        "time is 132 seconds (min. 128s, max 140s) [...] execution time of 110.2 seconds (min. \
         108s, max. 117s)",
        "sections 3.3.3 and 6: compiling Ceph on CephFS. Not measured here: there is no CephFS",
    ),
    (
        "throughput reaching 145 MB/s at 4 kB and 170 MB/s at 8 kB, representing speedups of 3.45x \
         and 2.50x [...] 440 MB/s at 64 kB and 680 MB/s at 128 kB, translating to speed-ups of \
         2.38x and 2.00x",
        "DeLiBA-K, section V-b, random and sequential writes. So DeLiBA-2 had 42, 68, 185 and 340 \
         MB/s there; whether with replication or erasure coding is not printed, so no row has them",
    ),
    (
        "DeLiBA-2 55 75 85 82 [...] DeLiBA-2 48 70 82 75",
        "DeLiBA-K, Table II: the same latencies as the hardware rows for 4 kB of Table 3. The bars \
         of DeLiBA-2 in DeLiBA-K's Fig. 6 to 9 have no printed numbers",
    ),
];

/// Why the loads have one access in flight, if the user does not choose.
pub const DEPTH_REASON: &str = "The paper prints no queue depth for these figures. Its own numbers \
    give it by Little's law: 9,000 reads of 4 kB per second (section 3.3.2) of 65 us each \
    (Table 3) are 0.6 in flight. So the default is 1; --depth N chooses another";

#[cfg(test)]
mod tests {
    use super::*;

    fn paper() -> Paper {
        Paper::read().expect("the file is good")
    }

    fn point(mode: Mode, pattern: Pattern, kb: u64) -> Point {
        Point { mode, pattern, block_bytes: kb << 10 }
    }

    #[test]
    fn every_cell_of_the_tables_is_there() {
        let paper = paper();
        let count = |quantity, of| {
            let all = paper.entries.iter();
            all.filter(|entry| (entry.quantity, entry.of) == (quantity, of)).count()
        };
        // Table 1 and the sentences of Fig. 4 and Fig. 7; Table 4; both halves of Table 3; Table 5.
        assert_eq!(count(Quantity::Throughput, Of::Software), 6 * 4 + 3);
        assert_eq!(count(Quantity::Throughput, Of::Hardware), 6 * 4);
        assert_eq!(count(Quantity::Latency, Of::Software), 4 * 4);
        assert_eq!(count(Quantity::Latency, Of::Hardware), 4 * 4);
        assert_eq!(count(Quantity::Deviation, Of::Hardware), 16 * 4);
        assert_eq!(count(Quantity::Share, Of::Software), 4);
        assert!(paper.entries.iter().all(|entry| entry.number.value > 0.0));
    }

    #[test]
    fn numbers_are_as_printed() {
        let paper = paper();
        let number = |quantity, of, mode, pattern, kb| {
            paper.number(quantity, of, point(mode, pattern, kb)).expect("it is printed")
        };
        use Mode::{Ec, Replication};
        use Pattern::{RandomRead, RandomWrite, SequentialRead, SequentialWrite};
        let read = number(Quantity::Throughput, Of::Software, Replication, SequentialRead, 16);
        assert_eq!((read.value, read.place.as_str()), (68.0, "DeLiBA-2, Table 1"));
        let write = number(Quantity::Throughput, Of::Hardware, Ec, RandomWrite, 256);
        assert_eq!((write.value, write.printed.as_str()), (491.0, "491 MB/s"));
        let slow = number(Quantity::Latency, Of::Software, Replication, RandomRead, 4);
        assert_eq!((slow.value, slow.deviation), (130.0, Some(0.631)));
        let fast = number(Quantity::Latency, Of::Hardware, Ec, SequentialRead, 128);
        assert_eq!((fast.value, fast.deviation), (98.0, Some(0.976)));
        let spread = number(Quantity::Deviation, Of::Hardware, Ec, RandomWrite, 4);
        assert_eq!((spread.value, spread.printed.as_str()), (0.812, ".812"));
        let best = number(Quantity::Iops, Of::Software, Replication, SequentialRead, 4);
        assert_eq!(best.value, 9000.0);
        assert!(best.place.contains("section 3.3.2") && best.place.contains("Fig. 4"));
        let gain = number(Quantity::ThroughputGain, Of::Hardware, Replication, SequentialWrite, 4);
        assert_eq!((gain.value, gain.is_derived), (2.81, false));
        let gain = number(Quantity::ThroughputGain, Of::Hardware, Replication, SequentialRead, 16);
        assert!((gain.value - 121.0 / 68.0).abs() < 1e-9 && gain.is_derived);
        assert_eq!(gain.printed, "121 MB/s over 68 MB/s");
    }

    #[test]
    fn what_is_not_printed_has_no_number() {
        let paper = paper();
        let none = |quantity, of, mode, pattern, kb| {
            assert_eq!(paper.number(quantity, of, point(mode, pattern, kb)), None);
        };
        let (rep, read) = (Mode::Replication, Pattern::SequentialRead);
        none(Quantity::Throughput, Of::Software, rep, read, 64);
        none(Quantity::Throughput, Of::Hardware, rep, read, 4);
        none(Quantity::Iops, Of::Hardware, rep, read, 4);
        none(Quantity::ThroughputGain, Of::Hardware, Mode::Ec, read, 512);
        none(Quantity::Throughput, Of::Software, rep, read, 4);
    }

    #[test]
    fn stages_and_cores_have_their_numbers() {
        let paper = paper();
        let stages = ["client", "kernel", "user-space", "storage"];
        let shares = stages.map(|stage| paper.stage(stage).expect("printed").value);
        assert_eq!(shares, [7.0, 47.25, 15.75, 29.5]);
        assert_eq!(paper.stage("network"), None);
        let best = |pattern| paper.best_of_cores(pattern).map(|number| number.value);
        assert_eq!(best(Pattern::SequentialRead), Some(45.0));
        assert_eq!(best(Pattern::SequentialWrite), Some(30.0));
        assert_eq!(best(Pattern::RandomRead), None);
    }

    #[test]
    fn the_default_depth_follows_from_printed_numbers() {
        let paper = paper();
        let at = point(Mode::Replication, Pattern::SequentialRead, 4);
        let iops = paper.number(Quantity::Iops, Of::Software, at).expect("printed").value;
        let latency = paper.number(Quantity::Latency, Of::Software, at).expect("printed").value;
        assert!((iops * latency / 1e6 - 0.585).abs() < 1e-3);
        assert!(DEPTH_REASON.contains("0.6 in flight"));
    }

    #[test]
    fn damaged_files_are_refused_with_the_place() {
        for (good, bad, says) in [
            ("\"68 MB/s\"", "\"fast\"", "Table 1"),
            ("\"16 kB (replication)\"", "\"16 kB (mirrored)\"", "mirrored"),
            ("\"16 kB (EC)\"", "\"16 (EC)\"", "no size"),
            (", \"48 MB/s\"", "", "3 cells"),
            ("\"pattern\": \"seq-write\"", "\"pattern\": \"append\"", "append"),
            ("4 kB, SW", "4 kB, XX", "neither"),
        ] {
            assert!(FILE.contains(good), "{good}");
            let error = Paper::parse(&FILE.replace(good, bad)).expect_err(bad);
            assert!(format!("{error:#}").contains(says), "{error:#}");
        }
    }
}
