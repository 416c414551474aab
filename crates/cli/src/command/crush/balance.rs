//! `fieldstone crush balance`: proposes upmaps that spread placement groups evenly.
//!
//! The result is a list of `ceph` commands, on stdout or in the file of `--out`. Tables on stdout
//! show the effect of the commands. Without `--out`, they are comments, so that the whole output
//! can be piped into a shell. `--json` prints one object instead: `moves`, `proposals` (`pgid`, and
//! `items` as pairs of OSDs; no items: remove the upmap) and `pools`, each with `pool`, `name`,
//! `before` and `after` (`max_deviation`, `standard_deviation`, `fullest`) and `osds` (`osd`,
//! `target`, `before`, `after`, in shards of placement groups).

use std::fmt::Write as _;
use std::path::PathBuf;

use fieldstone_bench::table::Table;
use fieldstone_crush::balance::{self, BalanceLimits, BalancePlan, PoolPlan, Spread};
use fieldstone_crush::osdmap::OsdMap;
use serde_json::{Value, json};

use super::cluster::{self, Assume, Threads};
use super::file;
use super::load::load_osdmap;

/// Options of `crush balance`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The OSDMap: `ceph osd getmap -o FILE`.
    osdmap: PathBuf,
    /// Most shards to move.
    #[arg(long, value_name = "N", default_value_t = 10)]
    max: usize,
    /// Shards of a pool by which an OSD may deviate from its share.
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    deviation: u32,
    /// Balance this pool only; may be repeated.
    #[arg(long, value_name = "POOL")]
    pool: Vec<String>,
    /// Write the commands to this file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write the OSDMap with the new upmaps to this file, to inspect their effect.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Also print a table of each pool's OSDs.
    #[arg(long)]
    osds: bool,
    /// Print one JSON object instead of commands and tables.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    assume: Assume,
    #[command(flatten)]
    threads: Threads,
}

/// Runs `crush balance`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (mut map, bytes) = load_osdmap(&args.osdmap)?;
    args.assume.apply(&mut map)?;
    let mut pools = cluster::pools(&map, &args.pool)?;
    if args.pool.is_empty() {
        pools.retain(|&pool| match balance::check(&map, pool) {
            Ok(()) => true,
            Err(why) => {
                eprint_line!("left alone: {why}");
                false
            }
        });
    }
    let limits = BalanceLimits { max_moves: args.max, deviation: args.deviation };
    let plan = balance::balance(&map, &pools, limits, args.threads.count())?;
    let commands: String = plan.proposals.iter().map(|proposal| format!("{proposal}\n")).collect();
    if let Some(out) = &args.out {
        file::write(out, commands.as_bytes())?;
    }
    if let Some(save) = &args.save {
        // The saved map has the upmaps, but not the assumed states.
        let mut saved = OsdMap::decode(&bytes)?;
        plan.apply(&mut saved);
        file::write(save, &saved.rewrite(&bytes)?)?;
    }
    if args.json {
        print_line!("{}", json(&map, &plan));
        return Ok(());
    }
    let changes = describe(&map, &plan, args.osds);
    if args.out.is_some() {
        print_text!("{changes}");
    } else {
        changes.lines().for_each(|line| print_line!("{}", format!("# {line}").trim_end()));
        print_text!("{commands}");
    }
    Ok(())
}

fn describe(map: &OsdMap, plan: &BalancePlan, osds: bool) -> String {
    let mut text = format!(
        "{} of {} placement groups change, {} shards move\n",
        plan.proposals.len(),
        plan.pools.iter().map(|pool| u64::from(map.pools[&pool.pool].pg_num)).sum::<u64>(),
        plan.moves
    );
    let heading = ["pool", "", "OSDs", "most above", "most below", "std dev", "fullest"];
    let mut table = Table::new(&heading);
    for pool in &plan.pools {
        let name = &map.pools[&pool.pool].name;
        table.row(spread_cells(name, "before", &pool.before));
        table.row(spread_cells("", "after", &pool.after));
    }
    text.push_str(&table.text());
    if osds {
        plan.pools.iter().for_each(|pool| text.push_str(&osd_table(map, pool)));
    }
    text
}

fn spread_cells(name: &str, when: &str, spread: &Spread) -> Vec<String> {
    vec![
        name.to_owned(),
        when.to_owned(),
        spread.devices.len().to_string(),
        format!("{:+.2}", spread.most_above()),
        format!("{:+.2}", -spread.most_below()),
        format!("{:.3}", spread.standard_deviation()),
        format!("{:.1} %", 100.0 * spread.fullest()),
    ]
}

fn osd_table(map: &OsdMap, pool: &PoolPlan) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "\npool {}", map.pools[&pool.pool].name);
    let mut table = Table::new(&["osd", "target", "before", "after", "deviation"]);
    for (before, after) in pool.before.devices.iter().zip(&pool.after.devices) {
        table.row(vec![
            format!("osd.{}", before.osd.0),
            format!("{:.2}", after.target),
            before.shards.to_string(),
            after.shards.to_string(),
            format!("{:+.2}", after.deviation()),
        ]);
    }
    text.push_str(&table.text());
    text
}

fn json(map: &OsdMap, plan: &BalancePlan) -> Value {
    let spread = |spread: &Spread| {
        json!({
            "max_deviation": spread.max_deviation(),
            "standard_deviation": spread.standard_deviation(),
            "fullest": spread.fullest(),
        })
    };
    let pool = |pool: &PoolPlan| {
        let osds = pool.before.devices.iter().zip(&pool.after.devices).map(|(before, after)| {
            json!({
                "osd": after.osd.0,
                "target": after.target,
                "before": before.shards,
                "after": after.shards,
            })
        });
        json!({
            "pool": pool.pool.0,
            "name": map.pools[&pool.pool].name,
            "before": spread(&pool.before),
            "after": spread(&pool.after),
            "osds": osds.collect::<Vec<_>>(),
        })
    };
    let proposals = plan.proposals.iter().map(|proposal| {
        let items: Vec<[i32; 2]> = proposal.items.iter().map(|(from, to)| [from.0, to.0]).collect();
        json!({ "pgid": proposal.pg.to_string(), "items": items })
    });
    json!({
        "moves": plan.moves,
        "proposals": proposals.collect::<Vec<_>>(),
        "pools": plan.pools.iter().map(pool).collect::<Vec<_>>(),
    })
}
