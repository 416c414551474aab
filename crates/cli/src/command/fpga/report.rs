//! `fieldstone fpga report`: the FPGA resources of the units, compared with the papers' figures.
//!
//! The counts come from Yosys (`rtl/synth/synthesize.py`), which maps each unit by itself and
//! neither places nor routes. `rtl/synth/results.json` has the counts, with a digest of the
//! sources.
//!
//! The estimated clocks are higher than routed ones: they follow from the cells on the deepest
//! paths and from assumed delays. Beside them are clocks of units that an open tool placed, and
//! mostly routed, for another and slower part ([`ROUTED`]).

use std::io::{self, Write};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// The counts at the time of the build.
const RESULTS: &str = include_str!("../../../../../rtl/synth/results.json");

/// Arguments of `fpga report`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print one JSON line per unit.
    #[arg(long)]
    json: bool,
}

/// The resources of the papers' card, an Alveo U280, as DeLiBA-K (section V-c) gives them.
const U280_LUTS: u64 = 1_300_000;
const U280_FFS: u64 = 2_720_000;
const U280_BRAMS: u64 = 2_016;
const U280_URAMS: u64 = 960;
const U280_DSPS: u64 = 9_024;

/// Assumed delays of cells and wires on a part like the U280's, in nanoseconds. Open tools do not
/// know the delays of UltraScale+, and the delay of a wire depends on placement.
struct Delays {
    /// Out of a register and into the next one, together.
    registers: f64,
    /// A LUT and the wire to it.
    lut: f64,
    /// A carry of four bits.
    carry: f64,
}
const FAST: Delays = Delays { registers: 0.15, lut: 0.25, carry: 0.02 };
const SLOW: Delays = Delays { registers: 0.30, lut: 0.70, carry: 0.06 };

/// The counts of a unit, as `synthesize.py` records them.
#[derive(Debug, Default, Deserialize)]
struct Unit {
    unit: String,
    digest: String,
    parameters: serde_json::Value,
    lut: u64,
    lut_memory: u64,
    ff: u64,
    bram36: u64,
    bram18: u64,
    uram: u64,
    dsp: u64,
    carry4: u64,
    #[serde(flatten)]
    depth: Option<Depth>,
}

/// The cells on the deepest paths between registers.
#[derive(Debug, Deserialize)]
struct Depth {
    depth_lut: u64,
    depth_carry: u64,
    depth_mux: u64,
    depth_lut_only: u64,
}

impl Depth {
    /// The clock in MHz that the paths allow, with the slow delays and with the fast ones.
    fn megahertz(&self) -> [u64; 2] {
        [&SLOW, &FAST].map(|delays| {
            let mixed = (self.depth_lut + self.depth_mux) as f64 * delays.lut
                + self.depth_carry as f64 * delays.carry;
            let luts = self.depth_lut_only as f64 * delays.lut;
            (1000.0 / (delays.registers + mixed.max(luts))) as u64
        })
    }

    fn text(&self) -> String {
        let Self { depth_lut, depth_carry, depth_mux, depth_lut_only } = self;
        format!("{} LUT + {depth_carry} CARRY4, or {depth_lut_only} LUT", depth_lut + depth_mux)
    }
}

/// The clock of a unit that nextpnr-ecp5 0.11 placed, and routed unless the note says otherwise,
/// for a Lattice LFE5UM5G-85 (ECP5, 40 nm, speed grade 8), from the sources of 2026-11-22. The part
/// is slower than the papers', so only the ratios between units carry over. Each clock is of one
/// run: two runs of `crc32c` gave 246 and 186 MHz.
#[derive(Clone, Copy, Debug, Serialize)]
struct Routed {
    #[serde(skip)]
    unit: &'static str,
    mhz: u64,
    /// How the unit differs from the one that is built here, its slowest path, or another run's
    /// clock.
    #[serde(skip_serializing_if = "str::is_empty")]
    note: &'static str,
}

const ROUTED: &[Routed] = &[
    Routed { unit: "crc32c", mhz: 246, note: "186 in another run" },
    Routed { unit: "fs_card_crossbar", mhz: 145, note: "" },
    Routed { unit: "crush_list", mhz: 112, note: "4 lanes, placed only" },
    Routed { unit: "codes_engine", mhz: 83, note: "4 lanes, placed only" },
    Routed { unit: "crush_uniform", mhz: 69, note: "4 lanes; slowest in the hash" },
    Routed { unit: "crush_pe", mhz: 68, note: "slowest in the check of a command" },
];

/// The warning at every estimated clock.
const CLOCK_NOTE: &str = "an estimate before placement from assumed delays; routing gives less";

/// Units that are not in the device, so no job uses them.
const NOT_IN_DEVICE: &[&str] = &["rs_encoder"];

/// The static region: `fs_top`, and the units that it connects.
const STATIC_REGION: &[&str] = &[
    "crush_unit",
    "codes_engine",
    "crc_engine",
    "qdma",
    "fs_card_crossbar",
    "dfx_config",
    "fs_top",
];

/// A paper's counts for the same function, after placing and routing. Most are for a whole shell,
/// as the note says.
#[derive(Clone, Copy, Debug, Serialize)]
struct Paper {
    paper_ref: &'static str,
    /// The parts that the counts include in addition to the function.
    #[serde(skip_serializing_if = "str::is_empty")]
    note: &'static str,
    lut: Option<u64>,
    ff: Option<u64>,
    bram: Option<u64>,
    uram: Option<u64>,
}

const fn paper(
    paper_ref: &'static str,
    lut: Option<u64>,
    ff: Option<u64>,
    bram: Option<u64>,
    uram: Option<u64>,
) -> Paper {
    Paper { paper_ref, note: "", lut, ff, bram, uram }
}

/// A row of DeLiBA-K's Table III: "RTL Kernel + RTL TCP/IP + CMAC + QDMA".
const fn shell(lut: u64, ff: u64, bram: u64, uram: u64) -> Paper {
    Paper {
        note: "with TCP/IP, CMAC and QDMA",
        ..paper("DeLiBA-K, Table III", Some(lut), Some(ff), Some(bram), Some(uram))
    }
}

/// A row of the second part of Table III: "Partial Reconfiguration Modules (RM)", of replication
/// accelerators.
const fn module(lut: Option<u64>, ff: u64, bram: u64, uram: u64) -> Paper {
    Paper {
        note: "a reconfigurable module: no shell, but all of replication",
        ..paper("DeLiBA-K, Table III", lut, Some(ff), Some(bram), Some(uram))
    }
}

/// A row of DeLiBA-2's Table 6: "kernel + TCP/IP + CMAC".
const fn deliba_2(lut: u64, bram: u64) -> Paper {
    Paper {
        note: "with TCP/IP and CMAC",
        ..paper("DeLiBA-2, Table 6", Some(lut), None, Some(bram), Some(0))
    }
}

/// Units, and the papers' counts for the same function.
const PAPERS: &[(&str, &[Paper])] = &[
    ("crush_straw", &[shell(78_555, 224_000, 190, 26), deliba_2(68_467, 112)]),
    ("crush_straw2", &[shell(82_334, 313_000, 165, 35), deliba_2(68_544, 102)]),
    ("crush_list", &[module(Some(52_335), 92_456, 85, 22), deliba_2(64_688, 90)]),
    // The text of the paper does not give the number of LUTs. It gives 15.93 % of 355 K.
    ("crush_tree", &[module(None, 97_523, 82, 26), deliba_2(67_982, 98)]),
    ("crush_uniform", &[module(Some(62_456), 112_000, 78, 29), deliba_2(69_143, 98)]),
    ("rs_encoder", &[shell(92_355, 582_000, 215, 52), deliba_2(70_111, 119)]),
    (
        "codes_engine",
        &[Paper {
            note: "12 processing units, and the vendor's platform",
            ..paper("MSR engine, Table II", Some(376_287), Some(552_005), Some(1050), None)
        }],
    ),
];

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'a> {
    unit: &'a str,
    parameters: &'a serde_json::Value,
    digest: &'a str,
    lut: u64,
    lut_of_u280: f64,
    ff: u64,
    ff_of_u280: f64,
    bram36: f64,
    bram_of_u280: f64,
    uram: u64,
    uram_of_u280: f64,
    dsp: u64,
    dsp_of_u280: f64,
    carry4: u64,
    /// The cells on the deepest paths. `None` for the sum of units, which were mapped separately.
    depth: Option<String>,
    estimated_mhz: Option<[u64; 2]>,
    /// The warning that the estimate is higher than a routed clock.
    estimated_mhz_note: Option<&'static str>,
    /// The clock of the unit on a slower part, if known.
    routed_ecp5: Option<Routed>,
    in_device: bool,
    papers: &'a [Paper],
}

impl Unit {
    /// The sum of units. Yosys mapped them separately, so a tool might need less for them together.
    fn sum<'a>(name: &str, units: impl Iterator<Item = &'a Self>) -> Self {
        let nothing = Self { unit: name.to_owned(), ..Self::default() };
        units.fold(nothing, |sum, unit| Self {
            lut: sum.lut + unit.lut,
            lut_memory: sum.lut_memory + unit.lut_memory,
            ff: sum.ff + unit.ff,
            bram36: sum.bram36 + unit.bram36,
            bram18: sum.bram18 + unit.bram18,
            uram: sum.uram + unit.uram,
            dsp: sum.dsp + unit.dsp,
            carry4: sum.carry4 + unit.carry4,
            ..sum
        })
    }

    /// The parameters of the unit as text.
    fn built(&self) -> String {
        let parameters = self.parameters.as_object().into_iter().flatten();
        let mut words: Vec<String> =
            parameters.map(|(name, value)| format!("{name}={value}")).collect();
        if !self.is_in_device() {
            words.push("(not in the device)".to_owned());
        }
        words.join(" ")
    }

    fn is_in_device(&self) -> bool {
        !NOT_IN_DEVICE.contains(&&*self.unit)
    }

    fn routed(&self) -> Option<Routed> {
        ROUTED.iter().find(|routed| routed.unit == self.unit).copied()
    }

    fn luts(&self) -> u64 {
        self.lut + self.lut_memory
    }

    fn brams(&self) -> f64 {
        self.bram36 as f64 + self.bram18 as f64 / 2.0
    }

    fn papers(&self) -> &'static [Paper] {
        PAPERS.iter().find(|(unit, _)| *unit == self.unit).map_or(&[], |(_, papers)| papers)
    }

    fn row(&self) -> Row<'_> {
        let share = |used: f64, all: u64| used / all as f64;
        Row {
            unit: &self.unit,
            parameters: &self.parameters,
            digest: &self.digest,
            lut: self.luts(),
            lut_of_u280: share(self.luts() as f64, U280_LUTS),
            ff: self.ff,
            ff_of_u280: share(self.ff as f64, U280_FFS),
            bram36: self.brams(),
            bram_of_u280: share(self.brams(), U280_BRAMS),
            uram: self.uram,
            uram_of_u280: share(self.uram as f64, U280_URAMS),
            dsp: self.dsp,
            dsp_of_u280: share(self.dsp as f64, U280_DSPS),
            carry4: self.carry4,
            depth: self.depth.as_ref().map(Depth::text),
            estimated_mhz: self.depth.as_ref().map(Depth::megahertz),
            estimated_mhz_note: self.depth.as_ref().map(|_| CLOCK_NOTE),
            routed_ecp5: self.routed(),
            in_device: self.is_in_device(),
            papers: self.papers(),
        }
    }
}

/// Runs `fpga report`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let units = units()?;
    let mut out = io::stdout().lock();
    if args.json {
        for unit in &units {
            writeln!(out, "{}", serde_json::to_string(&unit.row())?)?;
        }
        return Ok(());
    }
    head(&mut out)?;
    for unit in &units {
        line(&mut out, unit)?;
    }
    foot(&mut out)?;
    Ok(())
}

/// The recorded units, then the sum of those in the static region.
fn units() -> anyhow::Result<Vec<Unit>> {
    let mut units: Vec<Unit> =
        serde_json::from_str(RESULTS).context("rtl/synth/results.json is not what it should be")?;
    let all = |name: &&str| units.iter().find(|unit| unit.unit == **name);
    if STATIC_REGION.iter().all(|name| all(name).is_some()) {
        units.push(Unit::sum("static region, sum", STATIC_REGION.iter().filter_map(all)));
    }
    Ok(units)
}

fn head(out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "Resources by Yosys (synth_xilinx -family xcup): mapped unit by unit, not placed, not \
         routed."
    )?;
    writeln!(
        out,
        "The sum is of {}; one of list, tree and uniform comes to it.",
        STATIC_REGION.join(", ")
    )?;
    writeln!(
        out,
        "% is of a U280 ({U280_LUTS} LUT, {U280_FFS} FF, {U280_BRAMS} BRAM, {U280_URAMS} URAM, \
         {U280_DSPS} DSP)."
    )?;
    writeln!(out)?;
    writeln!(
        out,
        "{:<20} {:>8} {:>5} {:>8} {:>5} {:>7} {:>5} {:>5}  {:<28} {:>9} {:>9}  built with",
        "unit",
        "LUT",
        "%",
        "FF",
        "%",
        "BRAM36",
        "URAM",
        "DSP",
        "deepest paths",
        "MHz, est.",
        "ECP5 MHz"
    )
}

/// Prints a unit, and the papers' counts below it.
fn line(out: &mut impl Write, unit: &Unit) -> io::Result<()> {
    let row = unit.row();
    let line = format!(
        "{:<20} {:>8} {:>5.1} {:>8} {:>5.1} {:>7.1} {:>5} {:>5}  {:<28} {:>9} {:>9}  {}",
        row.unit,
        row.lut,
        100.0 * row.lut_of_u280,
        row.ff,
        100.0 * row.ff_of_u280,
        row.bram36,
        row.uram,
        row.dsp,
        row.depth.as_deref().unwrap_or("-"),
        row.estimated_mhz.map_or_else(|| "-".to_owned(), |[low, high]| format!("{low}-{high}")),
        row.routed_ecp5.map_or_else(|| "-".to_owned(), |routed| routed.mhz.to_string()),
        unit.built(),
    );
    writeln!(out, "{}", line.trim_end())?;
    for paper in row.papers {
        let number = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let line = format!(
            "  {:<20} {:>6} {:>5} {:>8} {:>5} {:>7} {:>5}         {}",
            paper.paper_ref,
            number(paper.lut),
            "",
            number(paper.ff),
            "",
            number(paper.bram),
            number(paper.uram),
            paper.note,
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn foot(out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "\n\
         The papers count after placing and routing. Theirs with TCP/IP are of a whole shell: the\n\
         neighbour of such a count is the static region's sum, which has no network, and not the\n\
         kernel above it. A reconfigurable module of DeLiBA-K does all of replication: the kernel\n\
         above it is a part of that, to which crush_pe and crush_map_memory come.\n\
         \n\
         MHz, est. is kinder than routing is. \
         It follows from the cells on the deepest paths, with\n\
         {} to {} ns per LUT with its wire and {} to {} ns per carry of four bits assumed. Open\n\
         tools know neither routing nor packing nor clock regions of this part. \
         DeLiBA-K's 235 MHz\n\
         and the MSR engine's 300 MHz are of routed designs.",
        FAST.lut, SLOW.lut, FAST.carry, SLOW.carry
    )?;
    let noted = ROUTED.iter().filter(|routed| !routed.note.is_empty());
    let noted: Vec<String> =
        noted.map(|routed| format!("  {:<16} {}", routed.unit, routed.note)).collect();
    writeln!(
        out,
        "ECP5 MHz is of the units of 2026-11-22, placed and routed by nextpnr-ecp5 0.11 for an\n\
         LFE5UM5G-85 of speed grade 8. That part of 40 nm is slower, so only the ratios of units\n\
         carry over, and one run is noise. \
         There crush_pe and crush_uniform reach 0.28 of crc32c's\n\
         clock, or 0.37 of that in its other run; \
         the estimates say 0.41 to 0.45. The hash of three\n\
         arguments reaches 90 MHz there with three of its lines per stage, \
         as here, and 168 with one.\n\
         {}",
        noted.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        let mut out = Vec::new();
        head(&mut out).expect("memory takes it");
        for unit in units().expect("the recorded counts are JSON") {
            line(&mut out, &unit).expect("memory takes it");
        }
        foot(&mut out).expect("memory takes it");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn every_clock_says_that_routing_gives_less() {
        let units = units().expect("the recorded counts are JSON");
        for row in units.iter().map(Unit::row) {
            assert_eq!(row.estimated_mhz.is_some(), row.estimated_mhz_note.is_some());
        }
        for routed in ROUTED {
            assert!(units.iter().any(|unit| unit.unit == routed.unit), "no unit {}", routed.unit);
        }
        let text = text();
        assert!(text.contains("kinder than routing") && text.contains("nextpnr-ecp5"), "{text}");
    }

    /// Checks the numbers that the text under the table gives for estimated and routed clocks.
    #[test]
    fn estimates_are_kinder_than_routing() {
        let units = units().expect("the recorded counts are JSON");
        let clocks = |name: &str| {
            let unit = units.iter().find(|unit| unit.unit == name).expect("a unit");
            let [low, high] = unit.row().estimated_mhz.expect("it has paths");
            (low as f64, high as f64, unit.routed().expect("it was routed").mhz as f64)
        };
        let crc = clocks("crc32c");
        for name in ["crush_pe", "crush_uniform"] {
            let unit = clocks(name);
            assert!((0.275..0.285).contains(&(unit.2 / crc.2)), "{name}");
            for estimate in [unit.0 / crc.0, unit.1 / crc.1] {
                assert!((0.405..0.455).contains(&estimate), "{name}: {estimate}");
            }
        }
    }

    #[test]
    fn papers_with_a_shell_and_units_outside_the_device_are_named() {
        let text = text();
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or("");
        assert!(line("rs_encoder").ends_with("(not in the device)"), "{text}");
        assert!(!line("codes_engine").contains("not in the device"), "{text}");
        for (unit, papers) in PAPERS {
            assert!(papers.iter().all(|paper| !paper.note.is_empty()), "{unit}");
        }
    }
}
