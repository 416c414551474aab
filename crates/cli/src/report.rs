//! Reports as text.

use std::fmt::Write as _;
use std::time::Duration;

use fieldstone_server::report::{
    CoreReport, EngineReport, IoReport, NodeReport, PoolReport, ProgressReport, ServerReport,
    VolumeReport,
};
use fieldstone_units::{duration_ns, size};

/// People see turns of a core from this length on. A client notices such a delay.
const LONG_TURN_NS: u64 = 100_000_000;

/// A pool, its nodes and its volumes, as text.
pub fn pool_text(report: &PoolReport) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    if !report.dir.is_empty() {
        line(format!("pool {}  {}  {}", report.dir, report.code, report.pool));
    }
    match &report.server {
        Some(server) => line(format!(
            "served by process {} for {} on {}, {} connections, {} of CPU time",
            server.pid,
            duration_ns(server.uptime_ns),
            server.listen.join(" "),
            server.connections,
            duration_ns(server.cpu_ns),
        )),
        None => line("not being served; this is an offline look".to_owned()),
    }
    if let Some(words) = report.server.as_ref().and_then(parity_memory_text) {
        line(words);
    }
    for core in report.server.iter().flat_map(|server| &server.cores) {
        if let Some(words) = long_turn_text(core) {
            line(words);
        }
    }
    if let (Some(provisioned), Some(there)) = (report.provisioned_bytes, report.provisionable_bytes)
    {
        line(provision_line(provisioned, there));
    }
    if let Some(words) = not_served_text(report) {
        line(words);
    }
    line(String::new());
    if !report.nodes.is_empty() {
        line(format!("{:<8} {:<8} {:>10} {:>10}  place", "node", "state", "size", "free"));
        for node in &report.nodes {
            line(node_line(node));
        }
    }
    for volume in &report.volumes {
        line(String::new());
        line(volume_text(volume).trim_end().to_owned());
    }
    if report.volumes.is_empty() {
        line(String::new());
        line("no volumes".to_owned());
    }
    text
}

/// A sentence that names the pool's volumes that the server does not serve. `None` if the server
/// serves all volumes, or if no node could list them.
pub fn not_served_text(report: &PoolReport) -> Option<String> {
    let names = report.not_served.as_deref().filter(|names| !names.is_empty())?;
    let names = names.join(", ");
    let by = report
        .server
        .as_ref()
        .map_or(String::new(), |server| format!(" by process {}", server.pid));
    Some(format!(
        "not served{by}, not checked: {names}; serve all volumes of the pool, or end that process"
    ))
}

fn provision_line(provisioned_bytes: u64, there_bytes: u64) -> String {
    let percent = 100.0 * provisioned_bytes as f64 / there_bytes.max(1) as f64;
    let thin = if provisioned_bytes > there_bytes { ": the pool can run full" } else { "" };
    format!(
        "full volumes would take {} of {} ({percent:.0} %){thin}",
        size(provisioned_bytes),
        size(there_bytes)
    )
}

/// Prints [`pool_text`].
pub fn print_pool(report: &PoolReport) {
    print_text!("{}", pool_text(report));
}

fn node_line(node: &NodeReport) -> String {
    let bytes = |bytes: u64| if node.total_bytes == 0 { "-".to_owned() } else { size(bytes) };
    let mut line = format!(
        "{:<8} {:<8} {:>10} {:>10}  {}",
        format!("node.{}", node.node),
        node.state,
        bytes(node.total_bytes),
        bytes(node.free_bytes),
        node.place
    );
    if !node.reason.is_empty() {
        let _ = write!(line, "\n         ({})", node.reason);
    }
    line
}

fn volume_text(volume: &VolumeReport) -> String {
    let mut rows = Vec::new();
    if let Some(client) = &volume.client {
        rows.push(("client", format!("{client} has it open, and tells this")));
    }
    if !volume.reason.is_empty() {
        rows.push(("reason", volume.reason.clone()));
    }
    if !volume.waits_for.is_empty() {
        rows.push(("waits for", volume.waits_for.clone()));
    }
    // Only a volume of a pool has an id. Other stores have no more rows.
    if !volume.id.is_empty() {
        // The contents of a volume are known only once it is open.
        if volume.protection != "unknown" {
            rows.extend(space_rows(volume));
        }
        rows.extend(state_rows(volume));
    }
    let mut text = format!(
        "volume {}  {}  {}  {}  {}\n",
        volume.name,
        volume.code,
        size(volume.size_bytes),
        volume.phase,
        volume.protection
    );
    for (name, words) in rows {
        let _ = writeln!(text, "  {name:<10} {words}");
    }
    if let Some(io) = &volume.io {
        text.push_str(&io_text(io));
    }
    text
}

fn space_rows(volume: &VolumeReport) -> [(&'static str, String); 5] {
    let data =
        format!("{} live, room for {}", size(volume.live_bytes), size(volume.capacity_bytes));
    let segments = format!(
        "{} ({} degraded, {} lost, {} to be freed), {} missing",
        volume.segments,
        volume.segments_degraded,
        volume.segments_lost,
        volume.segments_pending_free,
        shards(volume.shards_missing)
    );
    let nodes: Vec<String> = volume.journal_nodes.iter().map(ToString::to_string).collect();
    let journal = format!(
        "{} of {} in use, on nodes {}{}{}",
        size(volume.journal_used_bytes),
        size(volume.journal_ring_bytes),
        nodes.join(" "),
        if volume.journal_whole { "" } else { ", short of copies" },
        passed_on(volume)
    );
    let writing = format!(
        "{} by users, {} moved by garbage collection (longest pause {}), {} sent to nodes{}",
        size(volume.user_written_bytes),
        size(volume.moved_bytes),
        duration_ns(volume.gc_pause_max_ns),
        size(volume.sent_bytes),
        streamed(volume)
    );
    let memory =
        format!("extent map {}, {} checkpoints", size(volume.map_bytes), volume.checkpoints);
    [
        ("data", data),
        ("segments", segments),
        ("journal", journal),
        ("writing", writing),
        ("memory", memory),
    ]
}

/// How nodes pass records, copies and parity on to each other, if they do.
fn passed_on(volume: &VolumeReport) -> String {
    let way = match volume.replicate.as_str() {
        "" | "flat" => return String::new(),
        way => way,
    };
    let parity = match (volume.parities_relayed, volume.parities_sent_again) {
        (0, 0) => String::new(),
        (passed, again) => format!("; {passed} pieces of parity passed on, {again} sent once more"),
    };
    format!(
        ", {way} ({} writes passed on, {} sent once more{parity})",
        volume.appends_relayed + volume.copies_relayed,
        volume.appends_sent_again + volume.copies_sent_again
    )
}

/// A line about the memory for parity in the server's process, once it was used up.
fn parity_memory_text(server: &ServerReport) -> Option<String> {
    let memory = &server.parity_memory;
    (memory.denied > 0).then(|| {
        format!(
            "memory for parity (--parity-memory): {} of {} in use, {} sums or products found none",
            size(memory.sums_bytes + memory.products_bytes),
            size(memory.total_bytes),
            memory.denied
        )
    })
}

/// A line about a core that was late for its events a short time ago.
fn long_turn_text(core: &CoreReport) -> Option<String> {
    (core.turn_max_recent_ns >= LONG_TURN_NS).then(|| {
        format!(
            "the longest turn of core {} in the last 20 s took {} (docs/faults.md, \
             \"A core that is late\")",
            core.core,
            duration_ns(core.turn_max_recent_ns)
        )
    })
}

/// How much parity nodes made, if they make it.
fn streamed(volume: &VolumeReport) -> String {
    match volume.encode.as_str() {
        "stream" => format!(
            ", parity made by nodes ({} pieces, {} made by the volume again)",
            volume.parities_streamed, volume.parities_coded_again
        ),
        _ => String::new(),
    }
}

/// The nodes that are not up, the work of the device, the reads that were decoded, the damage that
/// was found, rebuild and scrub.
fn state_rows(volume: &VolumeReport) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    let not_up: Vec<String> = volume
        .nodes
        .iter()
        .filter(|node| node.state != "up")
        .map(|node| match node.reason.as_str() {
            "" => format!("node.{} {}", node.node, node.state),
            reason => format!("node.{} {} ({reason})", node.node, node.state),
        })
        .collect();
    if !not_up.is_empty() {
        let name = if volume.phase == "opening" { "waits for" } else { "nodes" };
        rows.push((name, not_up.join(", ")));
    }
    if let Some(text) = engine_text(&volume.engine) {
        rows.push(("engine", text));
    }
    if volume.degraded_reads > 0 {
        rows.push(("decoded", format!("{} reads", volume.degraded_reads)));
    }
    if volume.shards_damaged > 0 {
        let found = shards(volume.shards_damaged);
        rows.push(("damaged", format!("{found} found by reads and scrubs since the opening")));
    }
    let is_shown = |progress: &ProgressReport| {
        progress.running || progress.shards_done + progress.shards_failed > 0
    };
    if is_shown(&volume.rebuild) {
        rows.push(("rebuild", rebuild_text(&volume.rebuild)));
    }
    if is_shown(&volume.scrub) {
        rows.push(("scrub", scrub_text(volume)));
    }
    rows
}

/// The jobs that a device did. `None` if software did all of them.
pub fn engine_text(engine: &EngineReport) -> Option<String> {
    if engine.kinds.iter().all(|kind| kind.device_jobs == 0) {
        return None;
    }
    let kinds = engine.kinds.iter().filter(|kind| kind.jobs > 0).map(|kind| {
        let mut text = format!("{} of {} {}", kind.device_jobs, kind.jobs, kind.kind);
        if kind.device_failures > 0 {
            let part = |count: u64, what: &str| match count {
                0 => String::new(),
                count => format!(", {count} of them {what}"),
            };
            let wrong = part(kind.device_wrong, "with a wrong result");
            let late = part(kind.device_late, "late");
            let _ = write!(text, " ({} repeated in software{wrong}{late})", kind.device_failures);
        }
        text
    });
    let kinds: Vec<String> = kinds.collect();
    Some(format!("{}: {}", engine.name, kinds.join(", ")))
}

/// The bytes that a rebuild or scrub read and, if different, those that Reed-Solomon would have
/// read.
pub fn read_text(progress: &ProgressReport) -> String {
    let read = size(progress.read_bytes);
    match progress.reed_solomon_bytes {
        0 => read,
        bytes if bytes == progress.read_bytes => read,
        bytes => format!("{read} (Reed-Solomon: {})", size(bytes)),
    }
}

/// A number of shards: `1 shard`, `2 shards`.
pub fn shards(count: u64) -> String {
    format!("{count} shard{}", if count == 1 { "" } else { "s" })
}

/// A rebuild in one line.
pub fn rebuild_text(progress: &ProgressReport) -> String {
    progress_text(progress, &format!(", wrote {}", size(progress.written_bytes)))
}

/// A volume's scrub in one line. A scrub writes nothing itself: before it ends, a rebuild makes the
/// damaged shards again.
pub fn scrub_text(volume: &VolumeReport) -> String {
    let progress = &volume.scrub;
    let mut text = progress_text(progress, "");
    if progress.damaged > 0 {
        let after = match (progress.running, volume.shards_missing) {
            (true, _) => " so far",
            (false, 0) => ", no shard is missing now",
            // The missing shards may be others.
            (false, _) => "",
        };
        let _ = write!(text, ", {} damaged{after}", progress.damaged);
    }
    text
}

fn progress_text(progress: &ProgressReport, wrote: &str) -> String {
    let mut text = format!(
        "{} {} of {}, read {}{wrote} in {} ({})",
        if progress.running { "running:" } else { "done:" },
        progress.shards_done,
        shards(progress.shards_total),
        read_text(progress),
        duration_ns(progress.elapsed_ns),
        fieldstone_units::rate(progress.read_bytes, Duration::from_nanos(progress.elapsed_ns)),
    );
    if progress.shards_failed > 0 {
        let _ = write!(text, ", {} FAILED", progress.shards_failed);
    }
    text
}

fn io_text(io: &IoReport) -> String {
    let mut text = String::new();
    let ops: Vec<String> = io
        .requests
        .iter()
        .filter(|op| op.count > 0)
        .map(|op| {
            let errors =
                if op.errors > 0 { format!(" ({} failed)", op.errors) } else { String::new() };
            format!("{} {}{errors}, {}", op.count, op.op, size(op.bytes))
        })
        .collect();
    if !ops.is_empty() {
        let _ = writeln!(text, "  {:<10} {}", "requests", ops.join("; "));
    }
    let looked_up = io.cache_hits + io.cache_misses;
    if looked_up > 0 {
        let _ = writeln!(
            text,
            "  {:<10} {:.1} % of {looked_up} lookups hit, {} held",
            "cache",
            100.0 * io.cache_hits as f64 / looked_up as f64,
            size(io.cache_bytes)
        );
    }
    if io.merged > 0 {
        let _ = writeln!(text, "  {:<10} {} requests merged into others", "scheduler", io.merged);
    }
    text.push_str(&stage_table(io, "  "));
    text
}

/// The latencies of each stage of requests, one row per operation and stage. Empty if no stage
/// counted a request.
pub fn stage_table(io: &IoReport, indent: &str) -> String {
    let mut text = String::new();
    if io.stages.iter().all(|stage| stage.count == 0) {
        return text;
    }
    let _ = writeln!(
        text,
        "{indent}{:<6} {:<11} {:>10} {:>9} {:>9} {:>9}",
        "op", "stage", "count", "p50", "p99", "p99.9"
    );
    // Stages that are too short for the clock get no row.
    for stage in io.stages.iter().filter(|stage| stage.p999_ns > 0) {
        let _ = writeln!(
            text,
            "{indent}{:<6} {:<11} {:>10} {:>9} {:>9} {:>9}",
            stage.op,
            stage.stage,
            stage.count,
            duration_ns(stage.p50_ns),
            duration_ns(stage.p99_ns),
            duration_ns(stage.p999_ns)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use fieldstone_server::report::ParityMemoryReport;

    use super::*;

    #[test]
    fn volumes_that_are_not_served_are_named() {
        let mut report = PoolReport { not_served: Some(Vec::new()), ..PoolReport::default() };
        assert_eq!(not_served_text(&report), None);
        report.not_served = Some(vec!["u".to_owned(), "w".to_owned()]);
        report.server = Some(ServerReport { pid: 42, ..ServerReport::default() });
        let text = pool_text(&report);
        assert!(text.contains("not served by process 42, not checked: u, w; "), "{text}");
    }

    #[test]
    fn memory_for_parity_is_named_once_it_was_used_up() {
        let mut report = PoolReport { server: Some(ServerReport::default()), ..Default::default() };
        assert!(!pool_text(&report).contains("parity"));
        let memory = ParityMemoryReport {
            total_bytes: 64 << 20,
            sums_bytes: 1 << 20,
            products_bytes: 2 << 20,
            denied: 7,
        };
        report.server = Some(ServerReport { parity_memory: memory, ..ServerReport::default() });
        let text = pool_text(&report);
        assert!(text.contains("3 MiB of 64 MiB in use, 7 sums or products found none"), "{text}");
    }

    #[test]
    fn a_core_that_was_late_a_short_time_ago_is_named() {
        let core = |turn_max_recent_ns| CoreReport {
            core: 3,
            turn_max_ns: 9_000_000_000,
            turn_max_recent_ns,
            ..CoreReport::default()
        };
        let cores = vec![core(99_999_999)];
        let server = ServerReport { cores, ..ServerReport::default() };
        let mut report = PoolReport { server: Some(server), ..PoolReport::default() };
        assert!(!pool_text(&report).contains("core 3"));
        report.server.as_mut().expect("set").cores = vec![core(250_000_000)];
        let text = pool_text(&report);
        assert!(text.contains("core 3 in the last 20 s took 250"), "{text}");
    }

    #[test]
    fn a_scrub_says_what_became_of_the_damage() {
        let mut volume = VolumeReport { shards_missing: 1, ..VolumeReport::default() };
        volume.scrub =
            ProgressReport { shards_done: 9, shards_total: 9, damaged: 2, ..Default::default() };
        let text = scrub_text(&volume);
        assert!(text.starts_with("done: 9 of 9 shards, read 0 B in "), "{text}");
        assert!(text.ends_with(", 2 damaged"), "{text}");
        volume.shards_missing = 0;
        assert!(scrub_text(&volume).ends_with(", 2 damaged, no shard is missing now"));
        volume.scrub.running = true;
        assert!(scrub_text(&volume).ends_with(", 2 damaged so far"));
        volume.scrub = ProgressReport { shards_total: 1, ..ProgressReport::default() };
        assert!(scrub_text(&volume).starts_with("done: 0 of 1 shard, read"));
        assert!(rebuild_text(&volume.rebuild).contains("read 0 B, wrote 0 B in"));
    }

    #[test]
    fn one_missing_shard_is_singular() {
        let volume = VolumeReport { shards_missing: 1, id: "a".to_owned(), ..Default::default() };
        let text = volume_text(&volume);
        assert!(text.contains(" to be freed), 1 shard missing\n"), "{text}");
    }
}
