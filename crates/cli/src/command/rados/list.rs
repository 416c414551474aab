//! `rados ls` and `rados lspools`.

use fieldstone_rados::cluster::ListCursor;

use super::super::ceph::{CephArgs, pool_named};

/// Options of `rados lspools`.
#[derive(clap::Args, Debug)]
pub(super) struct PoolsArgs {
    /// Print one JSON object per pool.
    #[arg(long)]
    json: bool,
}

/// Options of `rados ls`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The pool.
    #[arg(long, short, value_name = "POOL")]
    pool: String,
    /// The namespace in the pool.
    #[arg(long, short = 'N', value_name = "NAME", default_value = "", conflicts_with = "all")]
    namespace: String,
    /// List the objects of all namespaces, each behind its namespace and a tab.
    #[arg(long)]
    all: bool,
    /// Print one JSON object per object.
    #[arg(long)]
    json: bool,
}

pub(super) fn pools(ceph: &CephArgs, args: &PoolsArgs) -> anyhow::Result<()> {
    let pools = ceph.with_cluster(|cluster| async move { Ok(cluster.pools().await?) })?;
    for pool in pools {
        if args.json {
            print_line!(
                "{}",
                serde_json::json!({
                    "id": pool.id.0,
                    "name": pool.name,
                    "erasure_coded": pool.is_erasure_coded,
                    "pg_num": pool.pg_num,
                    "full": pool.is_full,
                    "applications": pool.applications,
                })
            );
        } else {
            print_line!("{}", pool.name);
        }
    }
    Ok(())
}

pub(super) fn run(ceph: &CephArgs, args: &Args) -> anyhow::Result<()> {
    let (pool, json, all) = (args.pool.clone(), args.json, args.all);
    let namespace = (!all).then(|| args.namespace.clone());
    ceph.with_cluster(|cluster| async move {
        let pool = pool_named(&cluster, &pool).await?;
        let mut cursor = Some(ListCursor::default());
        while let Some(from) = cursor {
            let part = cluster.list(pool.id, namespace.clone(), from).await?;
            for (namespace, name, key) in part.objects {
                if json {
                    let line = serde_json::json!({
                        "namespace": namespace, "name": name, "locator": key,
                    });
                    print_line!("{line}");
                    continue;
                }
                let locator = if key.is_empty() { String::new() } else { format!("\t{key}") };
                match all {
                    true => print_line!("{namespace}\t{name}{locator}"),
                    false => print_line!("{name}{locator}"),
                }
            }
            cursor = part.next;
        }
        Ok(())
    })
}
