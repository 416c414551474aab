//! `fieldstone crush map`: applies rules to ranges of inputs, like `crushtool --test`.
//!
//! Options, lines and numbers are those of crushtool 16.2.15. Everything goes to standard output,
//! where crushtool writes the line of weights to standard error. The module `tester` of the crush
//! crate lists the differences in the numbers. The other differences are:
//!
//! - without any option that asks for output, the statistics are shown, where crushtool shows
//!   nothing;
//! - `--rule` with a rule that is not in the map is an error, where crushtool shows nothing;
//! - without `--num-rep`, the widths of mappings are the rule's own sizes, as in Ceph up to 16;
//!   later releases require a width;
//! - it has `--min-rep` and `--max-rep`, which 16 lacks, but not `--simulate`.
//!
//! `--json` prints one object per line: for mappings `{"rule", "x", "num_rep", "bad", "items"}`,
//! where an empty position is null and a bucket is a negative number; with statistics or `--html`,
//! a summary for every rule and width, see [`summary`]; with `--show-choose-tries`,
//! `{"failed_attempts"}` at the end.

mod draw;
mod options;
mod output;
mod summary;
mod tiles;

pub use options::Args;

use std::io::{self, Write as _};

use anyhow::Context;
use fieldstone_crush::tester::{
    Tally, Trial, csv, expect::Expected, text, utilization::Utilization,
};
use fieldstone_crush::{Map, Rule, RuleId, TriesHistogram};

use self::options::TestParams;
use self::output::Rendering;
use self::summary::Summary;
use super::load::load_map;
use crate::progress::counting_bar;

/// The output: a buffer in front of standard output.
type Out<'a> = io::BufWriter<io::StdoutLock<'a>>;

const BUFFER_BYTES: usize = 1 << 20;

/// Runs `crush map`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let map = load_map(&args.input)?;
    let params = TestParams::new(args, &map)?;
    let mut out = io::BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
    let tries = Tally { tries: TriesHistogram::new(&map).counts(), ..Tally::default() };
    let mut session = Session { args, map: &map, params: &params, pictures: Vec::new(), tries };
    if args.show_utilization_all && !args.json {
        out.write_all(text::weights(&params.weights).as_bytes())?;
    }
    for id in params.rules.clone() {
        match map.rules().find(|(known, _)| known.0 == id) {
            Some((id, rule)) => session.rule(&mut out, id, rule)?,
            None if params.statistics && !args.json => writeln!(out, "rule {id} dne")?,
            None => {}
        }
    }
    if args.show_choose_tries {
        // Like crushtool, this leaves out the last number of the histogram.
        let tries = &session.tries.tries;
        let histogram = &tries[..tries.len().saturating_sub(1)];
        match args.json {
            true => writeln!(out, "{}", serde_json::json!({ "failed_attempts": histogram }))?,
            false => out.write_all(text::tries(histogram).as_bytes())?,
        }
    }
    out.flush()?;
    if let Some(path) = &args.html {
        let page = draw::page(&map, &args.input, &session.pictures);
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The state that is kept over all rules and widths.
struct Session<'a> {
    args: &'a Args,
    map: &'a Map,
    params: &'a TestParams,
    pictures: Vec<draw::Picture>,
    /// The counts of failed attempts of all trials.
    tries: Tally,
}

impl Session<'_> {
    /// Runs all widths of one rule.
    fn rule(&mut self, out: &mut Out<'_>, id: RuleId, rule: &Rule) -> anyhow::Result<()> {
        let label = self.label(id);
        let widths = self.params.widths(rule);
        if self.params.statistics && !self.args.json {
            let heading = text::rule_heading(label, self.params.xs, widths);
            out.write_all(heading.as_bytes())?;
        }
        for width in widths.0..=widths.1 {
            // `TestParams::new` ignores negative widths.
            let width = usize::try_from(width).unwrap_or(0);
            // If all devices are out, nothing is printed, as in crushtool.
            let expected = Expected::new(self.map, rule, width, &self.params.weights);
            if let Some(expected) = expected {
                self.width(out, id, rule, width, &expected)?;
            }
        }
        Ok(())
    }

    /// Runs one rule with one width.
    fn width(
        &mut self,
        out: &mut Out<'_>,
        id: RuleId,
        rule: &Rule,
        width: usize,
        expected: &Expected,
    ) -> anyhow::Result<()> {
        let trial = Trial {
            map: self.map,
            // The weight set of pool 0 serves every pool: see the crush crate's `tester`.
            rule: self.map.rule(id)?.with_choose_args(self.map.choose_args_for_pool(0)),
            width,
            weights: &self.params.weights,
            first_x: self.params.xs.0,
            last_x: self.params.xs.1,
            pool: self.params.pool,
            count_tries: self.args.show_choose_tries,
        };
        let mut recorder = self.args.output_csv.then(|| {
            let devices = self.params.weights.len();
            csv::Recorder::new(trial.mappings(), width, self.args.batches.get(), devices)
        });
        let rendering = Rendering::new(self.args, id, width);
        let bar =
            counting_bar(&format!("rule {}, width {width}", id.0), "mappings", trial.mappings());
        let tally = trial.run(
            self.args.threads(),
            |text, x, items| rendering.row(text, x, items),
            |block| {
                bar.inc(block.rows.len() as u64);
                if let Some(recorder) = &mut recorder {
                    recorder.record(block);
                }
                // On a terminal, lines would break the bar.
                if !block.text.is_empty() {
                    bar.finish_and_clear();
                }
                out.write_all(&block.text)
            },
        )?;
        bar.finish_and_clear();
        if let Some(recorder) = recorder {
            output::write_sets(
                &self.args.output_name,
                self.label(id).name,
                &recorder.finish(&tally, expected, &self.params.weights),
            )?;
        }
        self.tries.add_tries(&tally.tries);
        self.report(out, id, rule, width, &tally, expected)
    }

    /// Prints the statistics below the mappings, and keeps the picture for the page.
    fn report(
        &mut self,
        out: &mut Out<'_>,
        id: RuleId,
        rule: &Rule,
        width: usize,
        tally: &Tally,
        expected: &Expected,
    ) -> anyhow::Result<()> {
        let label = self.label(id);
        let per_device = self.args.show_utilization || self.args.show_utilization_all;
        if self.params.statistics && !self.args.json {
            out.write_all(text::sizes(label, width, tally).as_bytes())?;
            if per_device {
                let all = !self.args.show_utilization;
                let lines = text::devices(tally, &expected.objects(tally.mappings), all);
                out.write_all(lines.as_bytes())?;
            }
        }
        if !self.args.json && self.args.html.is_none() {
            return Ok(());
        }
        let utilization = Utilization::new(self.map, rule, tally, &self.params.weights);
        if self.args.json && (self.params.statistics || self.args.html.is_some()) {
            let of = Summary { map: self.map, params: self.params, label, width, tally, expected };
            serde_json::to_writer(&mut *out, &of.json(&utilization, per_device))?;
            out.write_all(b"\n")?;
        }
        if self.args.html.is_some() {
            self.pictures.push(draw::Picture {
                rule: label.rule,
                name: label.name.to_owned(),
                width,
                xs: self.params.xs,
                mappings: tally.mappings,
                bad: tally.bad,
                utilization,
            });
        }
        Ok(())
    }

    fn label(&self, id: RuleId) -> text::RuleLabel<'_> {
        let name = self.map.names().rules.get(&id).map_or("", String::as_str);
        text::RuleLabel { rule: id.0, name }
    }
}
