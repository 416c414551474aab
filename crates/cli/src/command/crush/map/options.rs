//! The options of `crush map`, and the parameters that follow from them for a map.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use fieldstone_crush::tester::{default_weights, fixed_weight};
use fieldstone_crush::{Map, Rule};

/// Most positions of a mapping.
const MAX_WIDTH: i64 = u16::MAX as i64;
/// The last x if no range is given. The first x is then 0.
const LAST_X: i32 = 1023;

/// Options of `crush map`. A negative rule, width or x counts as not given.
#[derive(clap::Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// The map: text, binary, or an OSDMap file.
    #[arg(short, long, value_name = "MAP")]
    pub input: PathBuf,
    /// The rule, by number. [default: all]
    #[arg(long, value_name = "R", default_value_t = -1, hide_default_value = true,
          conflicts_with_all = ["min_rule", "max_rule"])]
    pub rule: i64,
    /// The first of several rules; takes effect with --max-rule.
    #[arg(long, value_name = "R", default_value_t = -1, hide_default_value = true)]
    pub min_rule: i64,
    /// The last of several rules.
    #[arg(long, value_name = "R", default_value_t = -1, hide_default_value = true)]
    pub max_rule: i64,
    /// Positions of a mapping. [default: every width from the rule's min_size to its max_size]
    #[arg(long, value_name = "N", default_value_t = -1, hide_default_value = true,
          conflicts_with_all = ["min_rep", "max_rep"])]
    pub num_rep: i64,
    /// The least of several widths; takes effect with --max-rep.
    #[arg(long, value_name = "N", default_value_t = -1, hide_default_value = true)]
    pub min_rep: i64,
    /// The greatest of several widths.
    #[arg(long, value_name = "N", default_value_t = -1, hide_default_value = true)]
    pub max_rep: i64,
    /// Only this input. [default: 0 to 1023]
    #[arg(long, value_name = "X", default_value_t = -1, hide_default_value = true,
          conflicts_with_all = ["min_x", "max_x"])]
    pub x: i32,
    /// The first input; takes effect with --max-x.
    #[arg(long, value_name = "X", default_value_t = -1, hide_default_value = true)]
    pub min_x: i32,
    /// The last input.
    #[arg(long, value_name = "X", default_value_t = -1, hide_default_value = true)]
    pub max_x: i32,
    /// The pool whose placement groups the inputs are: each x is hashed with the pool's number. -1
    /// for no pool.
    #[arg(long, value_name = "POOL", default_value_t = -1, hide_default_value = true)]
    pub pool_id: i64,
    /// The reweight of a device, from 0 to 1. [default: 1 for the devices in the map's buckets]
    #[arg(short, long, num_args = 2, value_names = ["OSD", "W"], action = clap::ArgAction::Append)]
    pub weight: Vec<String>,
    /// Parts that --output-csv cuts the inputs into.
    #[arg(long, value_name = "B", default_value = "1")]
    pub batches: NonZeroUsize,
    /// Print every mapping.
    #[arg(long)]
    pub show_mappings: bool,
    /// Print mappings that are shorter than requested or have an empty position.
    #[arg(long)]
    pub show_bad_mappings: bool,
    /// Print the number of mappings for each number of positions.
    #[arg(long)]
    pub show_statistics: bool,
    /// Print the objects of every device that stores any; implies --show-statistics.
    #[arg(long)]
    pub show_utilization: bool,
    /// Print the objects of every device, even those that store none; implies --show-statistics.
    #[arg(long)]
    pub show_utilization_all: bool,
    /// Print the number of choices for each number of failed attempts; much slower.
    #[arg(long)]
    pub show_choose_tries: bool,
    /// Write data sets for other programs to NAME-RULE-*.csv.
    #[arg(long)]
    pub output_csv: bool,
    /// The start of the names of data sets.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub output_name: String,
    /// Draw the objects of every device and bucket, compared with its share by weight.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print JSON, one object per line.
    #[arg(long)]
    pub json: bool,
    /// Number of threads. [default: the number of CPUs]
    #[arg(short = 'j', long, value_name = "J")]
    pub threads: Option<NonZeroUsize>,
}

impl Args {
    /// The number of threads.
    pub fn threads(&self) -> usize {
        let chosen = self.threads.or_else(|| std::thread::available_parallelism().ok());
        chosen.map_or(1, NonZeroUsize::get)
    }

    /// True if the options ask for any output other than statistics.
    fn shows_something_else(&self) -> bool {
        self.show_mappings
            || self.show_bad_mappings
            || self.show_choose_tries
            || self.output_csv
            || self.html.is_some()
    }
}

/// The parameters that follow from the options.
#[derive(Clone, Debug)]
pub struct TestParams {
    /// The numbers of the rules. Rules with these numbers need not exist.
    pub rules: RangeInclusive<u32>,
    /// The first and the last x.
    pub xs: (i32, i32),
    /// The number of the pool that x is hashed with, if any.
    pub pool: Option<u32>,
    /// Reweights of all devices, in 16.16 fixed point.
    pub weights: Vec<u32>,
    /// True if the statistics are printed.
    pub statistics: bool,
    /// The least and greatest width, if given.
    widths: Option<(i64, i64)>,
}

impl TestParams {
    /// The parameters for a map.
    pub fn new(args: &Args, map: &Map) -> anyhow::Result<Self> {
        let widths = match (args.num_rep, args.min_rep, args.max_rep) {
            (0.., _, _) => Some((args.num_rep, args.num_rep)),
            (_, 0.., 0..) => Some((args.min_rep, args.max_rep)),
            _ => None,
        };
        if let Some((_, most)) = widths {
            ensure!(most <= MAX_WIDTH, "a mapping has at most {MAX_WIDTH} positions, not {most}");
        }
        let xs = match (args.x, args.min_x, args.max_x) {
            (0.., _, _) => (args.x, args.x),
            (_, 0.., 0..) => (args.min_x, args.max_x),
            _ => (0, LAST_X),
        };
        Ok(Self {
            rules: rules(args, map)?,
            xs,
            // Only the lower 32 bits of a number count.
            pool: (args.pool_id != -1).then_some(args.pool_id as u32),
            weights: weights(args, map)?,
            statistics: args.show_statistics
                || args.show_utilization
                || args.show_utilization_all
                || !args.shows_something_else(),
            widths,
        })
    }

    /// The least and the greatest width for a rule.
    pub fn widths(&self, rule: &Rule) -> (i64, i64) {
        self.widths.unwrap_or((rule.min_size.into(), rule.max_size.into()))
    }
}

/// The range of rules. It ends at the map's last rule.
fn rules(args: &Args, map: &Map) -> anyhow::Result<RangeInclusive<u32>> {
    let Some(last) = map.rules().map(|(id, _)| id.0).max() else {
        bail!("{} has no rules", args.input.display());
    };
    match (args.rule, args.min_rule, args.max_rule) {
        (rule @ 0.., _, _) => match map.rules().find(|(id, _)| i64::from(id.0) == rule) {
            Some((id, _)) => Ok(id.0..=id.0),
            None => {
                let known: Vec<String> = map.rules().map(|(id, _)| id.0.to_string()).collect();
                let input = args.input.display();
                bail!("{input} has no rule {rule}; it has {}", known.join(", "))
            }
        },
        (_, min @ 0.., max @ 0..) => {
            let min = u32::try_from(min).unwrap_or(u32::MAX);
            Ok(min..=u32::try_from(max).map_or(last, |max| max.min(last)))
        }
        _ => Ok(0..=last),
    }
}

fn weights(args: &Args, map: &Map) -> anyhow::Result<Vec<u32>> {
    let mut weights = default_weights(map);
    for pair in args.weight.chunks_exact(2) {
        let Ok(osd) = pair[0].parse::<usize>() else {
            bail!("--weight {} {}: {:?} is not the number of a device", pair[0], pair[1], pair[0]);
        };
        let weight: f32 = match pair[1].parse() {
            Ok(weight) if !f32::is_nan(weight) => weight,
            _ => bail!("--weight {osd} {}: a weight is a number from 0 to 1", pair[1]),
        };
        match weights.get_mut(osd) {
            Some(known) => *known = fixed_weight(weight),
            None => tracing::warn!("--weight {osd} {weight}: the map has no device {osd}"),
        }
    }
    Ok(weights)
}
