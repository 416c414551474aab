//! `fieldstone fpga report`: what the units take of an FPGA, beside the papers' figures.
//!
//! The counts come from Yosys (`rtl/synth/synthesize.py`), which maps each unit by itself and neither
//! places nor routes. They are recorded in `rtl/synth/results.json`, with a digest of the sources.

use std::io::Write as _;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// What was recorded when this was built.
const RESULTS: &str = include_str!("../../../../../rtl/synth/results.json");

/// Arguments of `fpga report`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print one JSON line per unit.
    #[arg(long)]
    json: bool,
}

/// The chip of the papers' card, as DeLiBA-K (section V-c) gives it.
const U280_LUTS: u64 = 1_300_000;
const U280_FFS: u64 = 2_720_000;
const U280_BRAMS: u64 = 2_016;
const U280_URAMS: u64 = 960;
const U280_DSPS: u64 = 9_024;

/// Nanoseconds that cells and wires may take on a part like the U280's. These are assumptions, not data:
/// open tools do not know the delays of UltraScale+, and wires depend on placement.
struct Delays {
    /// Out of a register and into the next.
    registers: f64,
    /// A LUT and the wire to it.
    lut: f64,
    /// A carry of four bits.
    carry: f64,
}
const FAST: Delays = Delays { registers: 0.15, lut: 0.25, carry: 0.02 };
const SLOW: Delays = Delays { registers: 0.30, lut: 0.70, carry: 0.06 };

/// A unit as `synthesize.py` records it.
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
    /// Megahertz that the paths suggest, from slow to fast.
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

/// The units that `fs_top` connects, and itself: the static region.
const STATIC_REGION: &[&str] = &[
    "crush_unit",
    "codes_engine",
    "crc_engine",
    "qdma",
    "fs_card_crossbar",
    "dfx_config",
    "fs_top",
];

/// A paper's count of the same function. Theirs are after placing and routing, and of the whole shell:
/// network stack and, in DeLiBA-K, queue engine included.
#[derive(Clone, Copy, Debug, Serialize)]
struct Paper {
    paper_ref: &'static str,
    /// What it counts beside the function.
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

/// Units with what the papers print for the same function.
const PAPERS: &[(&str, &[Paper])] = &[
    (
        "crush_straw",
        &[
            paper("DeLiBA-K, Table III", Some(78_555), Some(224_000), Some(190), Some(26)),
            paper("DeLiBA-2, Table 6", Some(68_467), None, Some(112), Some(0)),
        ],
    ),
    (
        "crush_straw2",
        &[
            paper("DeLiBA-K, Table III", Some(82_334), Some(313_000), Some(165), Some(35)),
            paper("DeLiBA-2, Table 6", Some(68_544), None, Some(102), Some(0)),
        ],
    ),
    (
        "crush_list",
        &[
            paper("DeLiBA-K, Table III", Some(52_335), Some(92_456), Some(85), Some(22)),
            paper("DeLiBA-2, Table 6", Some(64_688), None, Some(90), Some(0)),
        ],
    ),
    (
        "crush_tree",
        &[
            // The number of LUTs is not in the text of the paper; 15.93 % of 355 K are.
            paper("DeLiBA-K, Table III", None, Some(97_523), Some(82), Some(26)),
            paper("DeLiBA-2, Table 6", Some(67_982), None, Some(98), Some(0)),
        ],
    ),
    (
        "crush_uniform",
        &[
            paper("DeLiBA-K, Table III", Some(62_456), Some(112_000), Some(78), Some(29)),
            paper("DeLiBA-2, Table 6", Some(69_143), None, Some(98), Some(0)),
        ],
    ),
    (
        "rs_encoder",
        &[
            paper("DeLiBA-K, Table III", Some(92_355), Some(582_000), Some(215), Some(52)),
            paper("DeLiBA-2, Table 6", Some(70_111), None, Some(119), Some(0)),
        ],
    ),
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
    /// What is on the deepest paths; not known of a device whose units were mapped apart.
    depth: Option<String>,
    estimated_mhz: Option<[u64; 2]>,
    papers: &'a [Paper],
}

impl Unit {
    /// Units together: mapped apart, so without what a tool might save between them.
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

    /// How it was built, for people.
    fn built(&self) -> String {
        let parameters = self.parameters.as_object().into_iter().flatten();
        let words: Vec<String> =
            parameters.map(|(name, value)| format!("{name}={value}")).collect();
        words.join(" ")
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
            papers: self.papers(),
        }
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut units: Vec<Unit> =
        serde_json::from_str(RESULTS).context("rtl/synth/results.json is not what it should be")?;
    let all = |name: &&str| units.iter().find(|unit| unit.unit == **name);
    if STATIC_REGION.iter().all(|name| all(name).is_some()) {
        units.push(Unit::sum("static region, sum", STATIC_REGION.iter().filter_map(all)));
    }
    if args.json {
        for unit in &units {
            writeln!(out, "{}", serde_json::to_string(&unit.row())?)?;
        }
        return Ok(());
    }
    writeln!(
        out,
        "Resources by Yosys (synth_xilinx -family xcup): mapped unit by unit, not placed, not routed."
    )?;
    writeln!(
        out,
        "The sum is of {}; one of list, tree and uniform comes to it.",
        STATIC_REGION.join(", ")
    )?;
    writeln!(
        out,
        "% is of a U280 ({U280_LUTS} LUT, {U280_FFS} FF, {U280_BRAMS} BRAM, {U280_URAMS} URAM, {U280_DSPS} DSP)."
    )?;
    writeln!(out)?;
    writeln!(
        out,
        "{:<20} {:>8} {:>5} {:>8} {:>5} {:>7} {:>5} {:>5}  {:<28} {:>9}  built with",
        "unit", "LUT", "%", "FF", "%", "BRAM36", "URAM", "DSP", "deepest paths", "MHz, est."
    )?;
    for unit in &units {
        let row = unit.row();
        let line = format!(
            "{:<20} {:>8} {:>5.1} {:>8} {:>5.1} {:>7.1} {:>5} {:>5}  {:<28} {:>9}  {}",
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
    }
    writeln!(out)?;
    writeln!(
        out,
        "The papers count a placed and routed shell with its network stack (DeLiBA-K: and queue engine);\n\
         ours are the units alone, and have no network. The clocks are an estimate from the cells on the\n\
         deepest paths, with {} to {} ns per LUT with its wire and {} to {} ns per carry\n\
         of four bits assumed; routing, clock regions and packing are not known to open tools.",
        FAST.lut, SLOW.lut, FAST.carry, SLOW.carry
    )?;
    Ok(())
}
