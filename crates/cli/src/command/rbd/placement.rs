//! `rbd map-table`: the placement of each object of an image.

use std::collections::BTreeMap;

use anyhow::{Context as _, anyhow};
use fieldstone_bench::table::Table;
use fieldstone_crush::ItemId;
use fieldstone_crush::osdmap::{OsdMap, PgId, PgTarget, PoolId};
use fieldstone_rbd::format::names;
use fieldstone_rbd::header::Header;

use super::super::ceph::{self, CephArgs};
use super::Context;
use super::info::state_of;
use super::names::PlaceArgs;

/// Options of `rbd map-table`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// The image or snapshot, as [POOL/[NAMESPACE/]]IMAGE[@SNAPSHOT].
    image: String,
    /// Print one JSON object per object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(ceph: &CephArgs, args: &Args) -> anyhow::Result<()> {
    let name = args.place.name(&args.image)?;
    let mut session = ceph.connect()?;
    let (context, image) = (Context::of(&session), name.clone());
    let found = ceph::run(&mut session, async move {
        let pool = context.pool(&image.place).await?;
        let header = pool.info(&image.image).await?;
        let (_, size_bytes) = state_of(&header, &image)?;
        context.cluster.newest_map().await?;
        Ok((pool.pool().id, header, size_bytes))
    });
    let map = session.map();
    session.close();
    let (pool, header, size_bytes) = found?;
    let map = map.ok_or_else(|| anyhow!("the client has no map of the OSDs"))?;
    let rows = Rows {
        map: &map,
        pool: header.data_pool.unwrap_or(pool),
        namespace: &name.place.namespace,
        header: &header,
    };
    rows.print(header.layout.objects(size_bytes), args.json)
}

/// The rows of the table.
struct Rows<'a> {
    map: &'a OsdMap,
    /// The pool of the data objects.
    pool: PoolId,
    namespace: &'a str,
    header: &'a Header,
}

impl Rows<'_> {
    fn print(&self, objects: u64, json: bool) -> anyhow::Result<()> {
        let mut placed: BTreeMap<PgId, PgTarget> = BTreeMap::new();
        let mut table = Table::new(&["OBJECT", "NAME", "PG", "ACTING", "PRIMARY"]);
        for object in 0..objects {
            let name = names::data(&self.header.prefix, object);
            let what = || format!("the placement of object {name}");
            let pg = self.map.locate(self.pool, self.namespace, "", &name).with_context(what)?;
            let target = match placed.get(&pg) {
                Some(target) => target,
                None => {
                    let target = self.map.pg_target(pg).with_context(what)?;
                    placed.entry(pg).or_insert(target)
                }
            };
            let primary = target.acting_primary.map(|osd| osd.0);
            if json {
                let acting: Vec<Option<u32>> = target.acting.iter().copied().map(osd_of).collect();
                let line = serde_json::json!({
                    "object": object, "name": name, "pg": pg.to_string(), "acting": acting,
                    "primary": primary,
                });
                print_line!("{line}");
                continue;
            }
            table.row(vec![
                object.to_string(),
                name,
                pg.to_string(),
                set_text(&target.acting),
                primary.map_or_else(|| "none".to_owned(), |osd| format!("osd.{osd}")),
            ]);
        }
        if !json {
            print_text!("{}", table.text());
        }
        Ok(())
    }
}

fn osd_of(item: ItemId) -> Option<u32> {
    item.osd().filter(|_| item != ItemId::NONE).map(|osd| osd.0)
}

/// A set of OSDs as `[2,0,-]`; `-` is a shard that no OSD has.
fn set_text(items: &[ItemId]) -> String {
    let name = |&item: &ItemId| osd_of(item).map_or_else(|| "-".to_owned(), |osd| osd.to_string());
    format!("[{}]", items.iter().map(name).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_short() {
        assert_eq!(set_text(&[ItemId(2), ItemId::NONE, ItemId(0)]), "[2,-,0]");
        assert_eq!(set_text(&[]), "[]");
    }
}
