//! `rados watch` and `rados notify`.

use fieldstone_rados::cluster::WatchEvent;

use super::super::ceph::CephArgs;
use super::{Object, PoolArgs};

/// Options of `rados watch`.
#[derive(clap::Args, Debug)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// The object. It has to exist.
    object: String,
    /// End after this many notifications. [default: never]
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
}

/// Options of `rados notify`.
#[derive(clap::Args, Debug)]
pub(super) struct NotifyArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// The object.
    object: String,
    /// The message.
    message: String,
    /// How long to wait for the watchers, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    timeout_ms: u32,
}

pub(super) fn watch(ceph: &CephArgs, args: &WatchArgs) -> anyhow::Result<()> {
    let (pool, name, count) = (args.pool.clone(), args.object.clone(), args.count);
    ceph.with_cluster(|cluster| async move {
        let object = Object::open(cluster.clone(), &pool, &name).await?;
        let watch =
            cluster.watch(object.name.clone()).await.map_err(|errno| object.named(errno))?;
        eprint_line!("fieldstone: watching {}/{name}; end with Ctrl-C", pool.pool);
        let mut seen = 0;
        while count.is_none_or(|count| seen < count) {
            match watch.next().await {
                WatchEvent::Notified { notify_id, from, payload } => {
                    print_line!("notified by client.{from}: {}", String::from_utf8_lossy(&payload));
                    watch.acknowledge(notify_id, bytes::Bytes::new());
                    seen += 1;
                }
                WatchEvent::Interrupted(errno) => {
                    eprint_line!("fieldstone: notifications may be missing: {errno}");
                }
                WatchEvent::Lost(errno) => return Err(object.named(errno)),
            }
        }
        Ok(watch.end().await?)
    })
}

pub(super) fn notify(ceph: &CephArgs, args: &NotifyArgs) -> anyhow::Result<()> {
    let (pool, name) = (args.pool.clone(), args.object.clone());
    let (message, timeout_ms) = (args.message.clone().into_bytes(), args.timeout_ms);
    let reply = ceph.with_cluster(|cluster| async move {
        let object = Object::open(cluster.clone(), &pool, &name).await?;
        cluster
            .notify(object.name.clone(), message.into(), timeout_ms)
            .await
            .map_err(|errno| object.named(errno))
    })?;
    for (watcher, answer) in reply.acknowledged {
        print_line!(
            "client.{} cookie {} acknowledged, {} bytes",
            watcher.client,
            watcher.cookie,
            answer.len()
        );
    }
    for watcher in reply.missed {
        print_line!("client.{} cookie {} did not answer", watcher.client, watcher.cookie);
    }
    Ok(())
}
