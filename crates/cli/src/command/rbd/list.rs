//! `rbd ls`.

use fieldstone_bench::table::Table;
use fieldstone_rbd::RbdError;
use fieldstone_rbd::header::Header;
use fieldstone_units as units;

use super::super::ceph::CephArgs;
use super::flight::{REQUESTS_AT_ONCE, in_flight};
use super::info::{ParentName, lock_word, protection_word};
use super::names::PlaceArgs;
use super::{Context, with_pool};

/// Options of `rbd ls`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// The pool, as POOL or POOL/NAMESPACE.
    #[arg(value_name = "POOL")]
    spec: Option<String>,
    /// Show sizes, parents and locks too, and snapshots.
    #[arg(long, short)]
    long: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// An image of the long list.
struct Row {
    header: Header,
    parent: Option<ParentName>,
}

pub(super) fn run(ceph: &CephArgs, args: &Args) -> anyhow::Result<()> {
    let place = args.place.place_named(args.spec.as_deref())?;
    if !args.long {
        let images = with_pool(ceph, &place, |_, pool| async move { Ok(pool.list().await?) })?;
        if args.json {
            print_line!("{}", serde_json::json!(images));
        } else {
            images.iter().for_each(|image| print_line!("{image}"));
        }
        return Ok(());
    }
    let rows = with_pool(ceph, &place, |context, pool| async move {
        let images = pool.list().await?;
        let mut rows = Vec::new();
        let headers = images.iter().map(|image| row(&context, &pool, image));
        in_flight(REQUESTS_AT_ONCE, headers, |row| {
            rows.extend(row?);
            Ok(())
        })
        .await?;
        Ok(rows)
    })?;
    print(&rows, args.json);
    Ok(())
}

/// `None` if the image was removed meanwhile.
async fn row(
    context: &Context,
    pool: &fieldstone_rbd::pool::Pool,
    image: &str,
) -> anyhow::Result<Option<Row>> {
    let header = match pool.info(image).await {
        Ok(header) => header,
        Err(RbdError::NoImage(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let parent = ParentName::of(context, &header).await?;
    Ok(Some(Row { header, parent }))
}

fn print(rows: &[Row], json: bool) {
    let mut table = Table::new(&["NAME", "SIZE", "PARENT", "FMT", "PROT", "LOCK"]);
    let mut list = Vec::new();
    for Row { header, parent } in rows {
        let parent_path = parent.as_ref().map(ParentName::path).unwrap_or_default();
        let lock = lock_word(header);
        list.push(serde_json::json!({
            "image": header.name, "id": header.id, "size": header.size_bytes, "format": 2,
            "parent": parent.as_ref().map(ParentName::json),
            "lock_type": (!lock.is_empty()).then_some(lock),
        }));
        table.row(vec![
            header.name.clone(),
            units::size(header.size_bytes),
            parent_path,
            "2".to_owned(),
            String::new(),
            lock.to_owned(),
        ]);
        for snapshot in &header.snapshots {
            let protection = protection_word(snapshot.protection);
            list.push(serde_json::json!({
                "image": header.name, "snapshot": snapshot.info.name,
                "snapshot_id": snapshot.info.id.0, "size": snapshot.info.size_bytes, "format": 2,
                "protected": protection,
            }));
            table.row(vec![
                format!("{}@{}", header.name, snapshot.info.name),
                units::size(snapshot.info.size_bytes),
                String::new(),
                "2".to_owned(),
                protection.to_owned(),
                String::new(),
            ]);
        }
    }
    if json {
        print_line!("{}", serde_json::json!(list));
    } else if !rows.is_empty() {
        print_text!("{}", table.text());
    }
}
