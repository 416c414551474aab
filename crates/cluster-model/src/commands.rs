//! Commands of monitors: those that clients of images use.

use bytes::Bytes;
use fieldstone_rados::Nanos;
use fieldstone_rados::cluster::CommandReply;
use fieldstone_rados::errno::Errno;
use serde_json::Value;

use crate::store::Store;

fn refusal(error: Errno, status: &str) -> CommandReply {
    CommandReply { result: -error.0, status: status.to_owned(), output: Bytes::new() }
}

fn done(status: String, output: String) -> CommandReply {
    CommandReply { result: 0, status, output: output.into() }
}

/// Executes a command, JSON with a `prefix`.
pub(crate) fn execute(store: &mut Store, json: &str, now: Nanos) -> CommandReply {
    let Ok(command) = serde_json::from_str::<Value>(json) else {
        return refusal(Errno::EINVAL, "command not understood");
    };
    let text = |key: &str| command.get(key).and_then(Value::as_str);
    match text("prefix") {
        // Ceph before 16 knows only the old words.
        Some("osd blocklist" | "osd blocklist ls") if store.has_old_monitors => {
            refusal(Errno::EINVAL, "command not known")
        }
        Some("osd blocklist" | "osd blacklist") => {
            let operation = text("blocklistop").or_else(|| text("blacklistop"));
            let expire = command.get("expire").and_then(Value::as_f64);
            change_blocklist(store, operation, text("addr"), expire, now)
        }
        Some("osd blocklist ls" | "osd blacklist ls") => {
            let addresses: Vec<&str> = store
                .all_shut_out()
                .filter(|&(_, until)| now < until)
                .map(|(address, _)| address)
                .collect();
            done(format!("listed {} entries", addresses.len()), addresses.join("\n"))
        }
        Some("osd lspools" | "osd pool ls") => {
            let names: Vec<&str> = store.pools().map(|pool| pool.info.name.as_str()).collect();
            done(String::new(), names.join("\n"))
        }
        _ => refusal(Errno::EINVAL, "command not known"),
    }
}

fn change_blocklist(
    store: &mut Store,
    operation: Option<&str>,
    address: Option<&str>,
    expire: Option<f64>,
    now: Nanos,
) -> CommandReply {
    let Some(address) = address.filter(|address| !address.is_empty()) else {
        return refusal(Errno::EINVAL, "unable to parse address");
    };
    match operation {
        Some("add") => {
            store.shut_out(address, expire.map(|seconds| seconds as u64), now);
            done(format!("blocklisting {address}"), String::new())
        }
        Some("rm") if store.let_in(address) => {
            done(format!("un-blocklisting {address}"), String::new())
        }
        Some("rm") => done(format!("{address} isn't blocklisted"), String::new()),
        _ => refusal(Errno::EINVAL, "blocklistop has to be add or rm"),
    }
}
