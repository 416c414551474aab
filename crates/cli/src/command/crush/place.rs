//! `fieldstone crush place`: the OSDs of a cluster's objects and placement groups.
//!
//! Without `--object`, one line per placement group, as `osdmaptool --test-map-pgs-dump-all` prints
//! it: the result of CRUSH (raw), where data should be (up), where it is (acting), each with its
//! primary. A hole is 2147483647. `--json` prints one object per line with the same, but without
//! the raw primary; holes and missing primaries are null.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use fieldstone_crush::osdmap::{OsdMap, PgId, Placement, PoolId};
use fieldstone_crush::{ItemId, OsdId};
use serde_json::{Value, json};

use super::cluster::{self, Assume, Threads};
use super::load::load_osdmap;

/// Options of `crush place`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The OSDMap: `ceph osd getmap -o FILE`.
    osdmap: PathBuf,
    /// This pool only; may be repeated.
    #[arg(long, value_name = "POOL")]
    pool: Vec<String>,
    /// This object only; needs --pool. May be repeated.
    #[arg(long, value_name = "NAME", requires = "pool")]
    object: Vec<String>,
    /// The namespace of the objects.
    #[arg(long, value_name = "NAME", default_value = "", requires = "object")]
    namespace: String,
    /// The objects' locator key, if they have one.
    #[arg(long, value_name = "KEY", default_value = "", requires = "object")]
    key: String,
    /// Print JSON, one object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    assume: Assume,
    #[command(flatten)]
    threads: Threads,
}

/// Runs `crush place`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (mut map, _) = load_osdmap(&args.osdmap)?;
    args.assume.apply(&mut map)?;
    let pools = cluster::pools(&map, &args.pool)?;
    let mut out = BufWriter::new(io::stdout().lock());
    for &pool in &pools {
        for name in &args.object {
            let pg = map.locate(pool, &args.namespace, &args.key, name)?;
            let line = Line { object: Some(name), pg, placement: &map.place(pg)? };
            line.write(&mut out, args.json)?;
        }
        if args.object.is_empty() {
            groups(&map, pool, args, &mut out)?;
        }
    }
    Ok(out.flush()?)
}

fn groups(map: &OsdMap, pool: PoolId, args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    let whole = map.place_pool(pool, args.threads.count())?;
    for seed in 0..whole.pg_num() {
        let pg = PgId { pool, seed };
        Line { object: None, pg, placement: &whole.placement(seed) }.write(out, args.json)?;
    }
    Ok(())
}

/// The output for one object or group.
struct Line<'a> {
    object: Option<&'a str>,
    pg: PgId,
    placement: &'a Placement,
}

impl Line<'_> {
    fn write(&self, out: &mut impl Write, json: bool) -> io::Result<()> {
        if json { writeln!(out, "{}", self.json()) } else { writeln!(out, "{}", self.text()) }
    }

    fn text(&self) -> String {
        let Placement { raw, up, up_primary, acting, acting_primary, .. } = self.placement;
        let raw_primary = raw.iter().find_map(|&item| osd(item));
        let object = self.object.map_or(String::new(), |name| format!("object '{name}' -> "));
        format!(
            "{object}{} raw {} up {} acting {}",
            self.pg,
            members(raw, raw_primary),
            members(up, *up_primary),
            members(acting, *acting_primary)
        )
    }

    fn json(&self) -> Value {
        let items = |items: &[ItemId]| -> Vec<Option<u32>> {
            items.iter().map(|&item| osd(item).map(|osd| osd.0)).collect()
        };
        let Placement { raw, up, up_primary, acting, acting_primary, .. } = self.placement;
        let mut value = json!({
            "pgid": self.pg.to_string(),
            "raw": items(raw),
            "up": items(up),
            "up_primary": up_primary.map(|osd| osd.0),
            "acting": items(acting),
            "acting_primary": acting_primary.map(|osd| osd.0),
        });
        if let Some(name) = self.object {
            value["object"] = json!(name);
        }
        value
    }
}

fn osd(item: ItemId) -> Option<OsdId> {
    if item == ItemId::NONE { None } else { item.osd() }
}

fn members(items: &[ItemId], primary: Option<OsdId>) -> String {
    let items: Vec<String> = items.iter().map(|item| item.0.to_string()).collect();
    let primary = primary.map_or("-1".to_owned(), |osd| osd.0.to_string());
    format!("([{}], p{primary})", items.join(","))
}
