//! Metrics for Prometheus: `GET /metrics` in the text exposition format, version 0.0.4.
//!
//! A scrape takes a snapshot through the same calls as `status`. Clients that ask while a snapshot
//! is being taken share it ([`Shared`]). Each client has a thread and a bounded time, and the
//! number of clients is bounded ([`Callers`]). So a client that is slow, sends no request or does
//! not read its answer keeps no other client from its answer. A connection serves one request.

use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::anyhow;

use crate::client_limits::{Caller, Callers, Line, Timed};
use crate::report::{
    CoreReport, EngineKindReport, IoReport, OpReport, ParityMemoryReport, PoolReport, VolumeReport,
};

/// Largest number of clients at a time.
const CLIENTS_MAX: usize = 16;
/// A client must send its request within this time. It must also take the answer within this time.
const CLIENT_LIMIT: Duration = Duration::from_secs(10);
/// Largest size of the head of a request.
const HEAD_BYTES_MAX: u64 = 8 << 10;
/// After the answer, up to this many bytes of the request are read and dropped. So a reset of the
/// connection does not discard the answer.
const REST_BYTES_MAX: u64 = 64 << 10;
/// How long the call may take that wakes the accepting thread.
const WAKE_LIMIT: Duration = Duration::from_millis(100);

/// Takes a snapshot: one report of each served pool, and one report without a pool, of the stores
/// that need no pool.
pub type Collect = Box<dyn Fn() -> Vec<PoolReport> + Send + Sync>;

/// A listening metrics server. Dropping it stops it.
pub struct MetricsServer {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
}

impl MetricsServer {
    /// Listens at `address` (`HOST:PORT`).
    ///
    /// # Errors
    /// The system refuses the address, for example because it is in use, or the thread cannot
    /// start.
    pub fn start(address: &str, collect: Collect) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).map_err(|error| {
            let form = match error.kind() {
                io::ErrorKind::InvalidInput => "; an address has the form HOST:PORT",
                _ => "",
            };
            anyhow!("cannot serve metrics on {address}: {error}{form}")
        })?;
        let stopped = Arc::new(AtomicBool::new(false));
        let server = Self { address: listener.local_addr()?, stopped: Arc::clone(&stopped) };
        let shared = Shared::default();
        let page = move |target: &str| answer(target, &shared, &collect);
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || accept(&listener, &stopped, &(Arc::new(page) as Page)))?;
        Ok(server)
    }

    /// The URL of the metrics.
    pub fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        // Wakes the accepting thread. If that fails, the thread ends with the process.
        let _ = TcpStream::connect_timeout(&self.address, WAKE_LIMIT);
    }
}

/// Returns the content for a path: the status line with its headers, and the text.
type Page = Arc<dyn Fn(&str) -> (&'static str, Arc<str>) + Send + Sync>;

/// A text that several clients share. It takes time of the cores, so it is made once for all
/// clients that ask while it is being made.
#[derive(Default)]
struct Shared(Mutex<Arc<OnceLock<Arc<str>>>>);

impl Shared {
    /// The text that is being made. If none is being made, makes one.
    fn get(&self, make: impl FnOnce() -> String) -> Arc<str> {
        let text = {
            let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // A complete text is older than this call.
            if current.get().is_some() {
                *current = Arc::default();
            }
            Arc::clone(&current)
        };
        Arc::clone(text.get_or_init(|| make().into()))
    }
}

fn accept(listener: &TcpListener, stopped: &AtomicBool, page: &Page) {
    let page = Arc::clone(page);
    let serve = move |caller| Ok(converse(&caller, &page)?);
    Callers::new(CLIENTS_MAX).serve_each(listener.incoming(), stopped, "metrics client", serve);
}

/// Reads one request, answers it and closes the connection.
fn converse(caller: &Caller<impl Line>, page: &Page) -> io::Result<()> {
    let mut line = Timed::new(caller.line(), CLIENT_LIMIT);
    let head = head(&mut line)?;
    let mut words = head.split(|byte| byte.is_ascii_whitespace());
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if caller.is_hung_up() {
        return Ok(());
    }
    let (status, text) = match (method, std::str::from_utf8(target)) {
        (b"GET" | b"HEAD", Ok(target)) => page(target),
        (b"GET" | b"HEAD", Err(_)) => ("400 Bad Request", "not a path\n".into()),
        _ => ("405 Method Not Allowed\r\nAllow: GET, HEAD", "use GET\n".into()),
    };
    // The page may have waited for nodes that do not answer. That time must not count for the
    // client.
    line.limit(CLIENT_LIMIT);
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        text.len()
    );
    if method != b"HEAD" {
        answer.push_str(&text);
    }
    line.write_all(answer.as_bytes())?;
    caller.line().end_of_answer();
    io::copy(&mut line.take(REST_BYTES_MAX), &mut io::sink())?;
    caller.line().hang_up();
    Ok(())
}

/// Reads the head of a request up to the empty line. May read more.
fn head(line: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = line.read(&mut piece)?;
        if count == 0 || head.len() as u64 > HEAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(&piece[..count]);
    }
    Ok(head)
}

fn answer(target: &str, shared: &Shared, collect: &Collect) -> (&'static str, Arc<str>) {
    match target {
        "/metrics" => ("200 OK", shared.get(|| text(&collect()))),
        _ => ("404 Not Found", "see /metrics\n".into()),
    }
}

/// A reported object, with its labels.
struct Labelled<'a, T> {
    labels: String,
    of: &'a T,
}

/// Lists all objects of a kind in the reports. If there are several pools, the labels of objects in
/// a pool begin with the pool.
fn labelled<'a, T>(
    reports: &'a [PoolReport],
    list: fn(&PoolReport) -> &[T],
    label: fn(&T) -> String,
) -> Vec<Labelled<'a, T>> {
    let pools = reports.iter().filter(|report| !report.pool.is_empty()).count();
    let one = |report: &'a PoolReport| {
        let pool = if pools > 1 && !report.pool.is_empty() {
            format!("pool=\"{}\",", report.pool)
        } else {
            String::new()
        };
        let labels = move |of: &'a T| Labelled { labels: format!("{pool}{}", label(of)), of };
        list(report).iter().map(labels)
    };
    reports.iter().flat_map(one).collect()
}

/// Formats the reports in the exposition format.
pub fn text(reports: &[PoolReport]) -> String {
    let mut out = Exposition::default();
    if let Some(server) = reports.first().and_then(|report| report.server.as_ref()) {
        out.family("fieldstone_uptime_seconds", "gauge", "Time since the server started.");
        out.sample("", seconds(server.uptime_ns));
        out.family("fieldstone_cpu_seconds_total", "counter", "CPU time of the server's cores.");
        out.sample("", seconds(server.cpu_ns));
        out.family("fieldstone_connections", "gauge", "NBD connections open now.");
        out.sample("", server.connections as f64);
        cores(&mut out, &server.cores);
        parity_memory(&mut out, &server.parity_memory);
    }
    let nodes = labelled(reports, |report| &report.nodes, |node| format!("node=\"{}\"", node.node));
    out.family("fieldstone_node_up", "gauge", "1 for a node that answers.");
    for node in &nodes {
        out.sample(&node.labels, f64::from(u8::from(node.of.state == "up")));
    }
    out.family("fieldstone_node_free_bytes", "gauge", "Bytes of free slots on a node.");
    for node in &nodes {
        out.sample(&node.labels, node.of.free_bytes as f64);
    }
    out.family("fieldstone_node_size_bytes", "gauge", "Bytes of all slots of a node.");
    for node in &nodes {
        out.sample(&node.labels, node.of.total_bytes as f64);
    }
    let mut all = labelled(reports, |report| &report.volumes, volume_label);
    // A client has metrics of its own for the volume that it has open.
    all.retain(|volume| volume.of.client.is_none());
    volumes(&mut out, &all);
    engines(&mut out, &all);
    requests(&mut out, &all);
    latencies(&mut out, &all);
    layers(&mut out, &all);
    stores(&mut out, &all);
    out.0
}

/// The turns of the cores: a part that works too long keeps all others of its core waiting.
fn cores(out: &mut Exposition, cores: &[CoreReport]) {
    type Field = fn(&CoreReport) -> f64;
    let fields: [(&str, &str, &str, Field); 4] = [
        ("turns_total", "counter", "Turns of the core's loop.", |core| core.turns as f64),
        ("turn_seconds_total", "counter", "Time in turns, without waits for events.", |core| {
            seconds(core.turns_busy_ns)
        }),
        ("turn_seconds_max", "gauge", "Longest turn since the start.", |core| {
            seconds(core.turn_max_ns)
        }),
        ("turn_seconds_max_recent", "gauge", "Longest turn of the last 10 to 20 s.", |core| {
            seconds(core.turn_max_recent_ns)
        }),
    ];
    for (name, kind, help, field) in fields {
        out.family(&format!("fieldstone_core_{name}"), kind, help);
        for core in cores {
            out.sample(&format!("core=\"{}\"", core.core), field(core));
        }
    }
}

/// The memory for parity that the nodes of the process make.
fn parity_memory(out: &mut Exposition, memory: &ParityMemoryReport) {
    out.family("fieldstone_parity_memory_bytes", "gauge", "Memory in use for parity by nodes.");
    out.sample("use=\"sums\"", memory.sums_bytes as f64);
    out.sample("use=\"products\"", memory.products_bytes as f64);
    out.family("fieldstone_parity_memory_size_bytes", "gauge", "Memory for parity by nodes.");
    out.sample("", memory.total_bytes as f64);
    let help = "Sums and products for which there was no memory.";
    out.family("fieldstone_parity_memory_denied_total", "counter", help);
    out.sample("", memory.denied as f64);
}

/// A volume, with its labels.
type Labels<'a> = Labelled<'a, VolumeReport>;

type Field = fn(&VolumeReport) -> u64;
/// Name, help text and value of a metric of a `T`.
type Row<T> = (&'static str, &'static str, fn(&T) -> u64);

/// A metric: name, type, help text, value.
type Metric = (&'static str, &'static str, &'static str, Field);

/// Metrics of all devices.
const DEVICE_FIELDS: &[Metric] = &[
    ("size_bytes", "gauge", "Size of the device.", |v| v.size_bytes),
    ("capacity_bytes", "gauge", "Bytes that could hold data.", |v| v.capacity_bytes),
];

/// Metrics of the volumes of pools.
const VOLUME_FIELDS: &[Metric] = &[
    ("live_bytes", "gauge", "Bytes that hold data.", |v| v.live_bytes),
    ("map_bytes", "gauge", "Memory of the extent map.", |v| v.map_bytes),
    ("segments", "gauge", "Segments whose shards are on nodes.", |v| v.segments),
    ("segments_degraded", "gauge", "Segments with a missing shard.", |v| v.segments_degraded),
    ("segments_lost", "gauge", "Segments that cannot be read.", |v| v.segments_lost),
    ("shards_missing", "gauge", "Shards missing.", |v| v.shards_missing),
    ("journal_used_bytes", "gauge", "Log that only the journal holds.", |v| v.journal_used_bytes),
    ("journal_whole", "gauge", "1 while the journal has all its copies.", |v| {
        u64::from(v.journal_whole)
    }),
    ("user_written_bytes_total", "counter", "Bytes that users wrote.", |v| v.user_written_bytes),
    ("moved_bytes_total", "counter", "Bytes that garbage collection moved.", |v| v.moved_bytes),
    ("sent_bytes_total", "counter", "Bytes sent to nodes.", |v| v.sent_bytes),
    ("appends_relayed_total", "counter", "Records that nodes passed on.", |v| v.appends_relayed),
    ("appends_sent_again_total", "counter", "Records sent to nodes that were not reached.", |v| {
        v.appends_sent_again
    }),
    ("copies_relayed_total", "counter", "Writes of copies that nodes passed on.", |v| {
        v.copies_relayed
    }),
    ("copies_sent_again_total", "counter", "Copies sent to nodes that were not reached.", |v| {
        v.copies_sent_again
    }),
    ("parities_relayed_total", "counter", "Pieces of parity that nodes passed on.", |v| {
        v.parities_relayed
    }),
    ("parities_sent_again_total", "counter", "Parity sent to nodes that were not reached.", |v| {
        v.parities_sent_again
    }),
    ("parities_streamed_total", "counter", "Pieces of parity that nodes made.", |v| {
        v.parities_streamed
    }),
    ("parities_coded_again_total", "counter", "Pieces of parity made in the nodes' place.", |v| {
        v.parities_coded_again
    }),
    ("degraded_reads_total", "counter", "Reads that needed decoding.", |v| v.degraded_reads),
    ("rebuild_running", "gauge", "1 while a rebuild runs.", |v| u64::from(v.rebuild.running)),
    ("rebuild_shards_total", "gauge", "Shards of the rebuild.", |v| v.rebuild.shards_total),
    ("rebuild_shards_done", "gauge", "Shards rebuilt.", |v| v.rebuild.shards_done),
    ("rebuild_read_bytes", "gauge", "Bytes that the rebuild read.", |v| v.rebuild.read_bytes),
    ("scrub_running", "gauge", "1 while a scrub runs.", |v| u64::from(v.scrub.running)),
    ("scrub_shards_done", "gauge", "Shards checked.", |v| v.scrub.shards_done),
    ("scrub_damaged", "gauge", "Damaged shards that the last scrub found.", |v| v.scrub.damaged),
    (
        "damaged_shards_total",
        "counter",
        "Shards that reads and scrubs found damaged or gone.",
        |v| v.shards_damaged,
    ),
];

fn volumes(out: &mut Exposition, volumes: &[Labels<'_>]) {
    let of_pools: Vec<_> = volumes.iter().filter(|volume| volume.of.is_of_pool()).collect();
    for (name, kind, help, field) in DEVICE_FIELDS {
        out.family(&format!("fieldstone_volume_{name}"), kind, help);
        for volume in volumes {
            out.sample(&volume.labels, field(volume.of) as f64);
        }
    }
    for (name, kind, help, field) in VOLUME_FIELDS {
        out.family(&format!("fieldstone_volume_{name}"), kind, help);
        for volume in &of_pools {
            out.sample(&volume.labels, field(volume.of) as f64);
        }
    }
    out.family("fieldstone_volume_gc_pause_seconds_max", "gauge", "Longest pause by GC.");
    for volume in of_pools {
        out.sample(&volume.labels, seconds(volume.of.gc_pause_max_ns));
    }
    out.family(
        "fieldstone_volume_oldest_request_seconds",
        "gauge",
        "Time for which the oldest unanswered request has been waiting; 0 if there is none.",
    );
    for (volume, io) in volumes.iter().filter_map(|v| Some((v, v.of.io.as_ref()?))) {
        out.sample(&volume.labels, seconds(io.oldest_ns));
    }
    let hits: [Row<IoReport>; 2] = [
        ("fieldstone_cache_hits_total", "Reads answered from the cache.", |io| io.cache_hits),
        ("fieldstone_cache_misses_total", "Reads that were not.", |io| io.cache_misses),
    ];
    for (name, help, field) in hits {
        out.family(name, "counter", help);
        for (volume, io) in volumes.iter().filter_map(|v| Some((v, v.of.io.as_ref()?))) {
            out.sample(&volume.labels, field(io) as f64);
        }
    }
}

fn engines(out: &mut Exposition, volumes: &[Labels<'_>]) {
    let fields: [Row<EngineKindReport>; 7] = [
        ("fieldstone_accel_jobs_total", "Codings, placements and checksums.", |kind| kind.jobs),
        ("fieldstone_accel_bytes_total", "Bytes that they read.", |kind| kind.bytes),
        ("fieldstone_accel_device_jobs_total", "Of those, given to a device.", |kind| {
            kind.device_jobs
        }),
        ("fieldstone_accel_device_full_total", "Left to software for want of room.", |kind| {
            kind.device_full
        }),
        ("fieldstone_accel_device_failures_total", "Repeated in software.", |kind| {
            kind.device_failures
        }),
        ("fieldstone_accel_device_wrong_total", "Of those, with a wrong result.", |kind| {
            kind.device_wrong
        }),
        ("fieldstone_accel_device_late_total", "Of those, late.", |kind| kind.device_late),
    ];
    for (name, help, field) in fields {
        out.family(name, "counter", help);
        for volume in volumes {
            for kind in &volume.of.engine.kinds {
                let label = format!("{},kind=\"{}\"", volume.labels, kind.kind);
                out.sample(&label, field(kind) as f64);
            }
        }
    }
}

fn requests(out: &mut Exposition, volumes: &[Labels<'_>]) {
    let fields: [Row<OpReport>; 3] = [
        ("fieldstone_requests_total", "Requests completed.", |op| op.count),
        ("fieldstone_request_errors_total", "Requests that failed.", |op| op.errors),
        ("fieldstone_request_bytes_total", "Bytes moved by requests.", |op| op.bytes),
    ];
    for (name, help, field) in fields {
        out.family(name, "counter", help);
        for volume in volumes {
            for op in volume.of.io.iter().flat_map(|io| &io.requests) {
                let label = format!("{},op=\"{}\"", volume.labels, op.op);
                out.sample(&label, field(op) as f64);
            }
        }
    }
}

fn latencies(out: &mut Exposition, volumes: &[Labels<'_>]) {
    out.family("fieldstone_stage_seconds", "summary", "Latency of each stage of a request.");
    for volume in volumes {
        for stage in volume.of.io.iter().flat_map(|io| &io.stages) {
            let label = format!("{},op=\"{}\",stage=\"{}\"", volume.labels, stage.op, stage.stage);
            for (quantile, value) in
                [("0.5", stage.p50_ns), ("0.99", stage.p99_ns), ("0.999", stage.p999_ns)]
            {
                out.sample(&format!("{label},quantile=\"{quantile}\""), seconds(value));
            }
            out.line("_sum", &label, seconds(stage.mean_ns) * stage.count as f64);
            out.line("_count", &label, stage.count as f64);
        }
    }
}

fn layers(out: &mut Exposition, volumes: &[Labels<'_>]) {
    out.family("fieldstone_layer", "untyped", "Counters of the layers of a device.");
    for volume in volumes {
        for layer in volume.of.io.iter().flat_map(|io| &io.layers) {
            for counter in &layer.counters {
                let label = format!(
                    "{},layer=\"{}\",counter=\"{}\"",
                    volume.labels, layer.name, counter.name
                );
                out.sample(&label, counter.value as f64);
            }
        }
    }
}

fn stores(out: &mut Exposition, volumes: &[Labels<'_>]) {
    out.family("fieldstone_store", "untyped", "Counters of the store of a device.");
    for volume in volumes {
        for counter in volume.of.io.iter().flat_map(|io| &io.store) {
            let label = format!("{},counter=\"{}\"", volume.labels, counter.name);
            out.sample(&label, counter.value as f64);
        }
    }
}

fn volume_label(volume: &VolumeReport) -> String {
    let name = volume.name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("volume=\"{name}\"")
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The text so far, and the name of the current family.
#[derive(Default)]
struct Exposition(String, String);

impl Exposition {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        name.clone_into(&mut self.1);
    }

    fn sample(&mut self, labels: &str, value: f64) {
        self.line("", labels, value);
    }

    fn line(&mut self, suffix: &str, labels: &str, value: f64) {
        let name = &self.1;
        let _ = if labels.is_empty() {
            writeln!(self.0, "{name}{suffix} {value}")
        } else {
            writeln!(self.0, "{name}{suffix}{{{labels}}} {value}")
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{CounterReport, LayerReport, NodeReport, StageReport};
    use std::time::Instant;

    /// Serves a page of `len_bytes` bytes on any free port.
    fn serve(len_bytes: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let page: Page = Arc::new(move |_: &str| ("200 OK", "x".repeat(len_bytes).into()));
        std::thread::spawn(move || accept(&listener, &AtomicBool::new(false), &page));
        address
    }

    fn get(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).expect("listens");
        stream.write_all(request).expect("taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    #[test]
    fn requests_are_answered_and_nonsense_is_refused() {
        let address = serve(3);
        let answer = get(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nxxx"));
        assert!(answer.contains("\r\nContent-Length: 3\r\n"), "{answer}");
        let answer = get(address, b"HEAD / HTTP/1.0\r\n\r\n");
        assert!(answer.contains("Length: 3\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
        assert!(get(address, b"PUT / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(get(address, b"GET \xff HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn slow_silent_and_deaf_clients_keep_nobody_waiting() {
        let address = serve(8 << 20);
        let mut slow: Vec<TcpStream> =
            (0..3 * CLIENTS_MAX).map(|_| TcpStream::connect(address).expect("listens")).collect();
        for (index, stream) in slow.iter_mut().enumerate() {
            let request: &[u8] =
                if index % 2 == 0 { b"GET /me" } else { b"GET / HTTP/1.1\r\n\r\n" };
            // A client whose connection is closed already cannot send.
            let _ = stream.write_all(request);
        }
        let begun = Instant::now();
        let answer = get(address, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.len() > 8 << 20);
        assert!(begun.elapsed() < CLIENT_LIMIT / 2, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_text_is_shared_while_it_is_made_and_made_anew_after() {
        let shared = Shared::default();
        let (made, waiting) = (Mutex::new(0), std::sync::Barrier::new(5));
        let make = || {
            std::thread::sleep(Duration::from_millis(300));
            *made.lock().expect("no panic") += 1;
            "text".to_owned()
        };
        std::thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    waiting.wait();
                    assert_eq!(&*shared.get(make), "text");
                });
            }
        });
        assert_eq!(*made.lock().expect("no panic"), 1);
        shared.get(make);
        assert_eq!(*made.lock().expect("no panic"), 2);
    }

    #[test]
    fn every_line_is_of_the_format_and_names_are_escaped() {
        let io = IoReport {
            requests: vec![OpReport { op: "read".to_owned(), count: 3, errors: 0, bytes: 9 }],
            stages: vec![StageReport {
                op: "read".to_owned(),
                stage: "total".to_owned(),
                count: 3,
                mean_ns: 1600,
                p50_ns: 1500,
                p99_ns: 2000,
                p999_ns: 2000,
            }],
            layers: vec![LayerReport {
                name: "luks".to_owned(),
                counters: vec![CounterReport { name: "waited".to_owned(), value: 7 }],
                ..LayerReport::default()
            }],
            store: vec![CounterReport { name: "syncs".to_owned(), value: 6 }],
            ..IoReport::default()
        };
        let volume =
            VolumeReport { name: "a\"b".to_owned(), io: Some(io), ..VolumeReport::default() };
        let report = PoolReport {
            pool: "aa".to_owned(),
            nodes: vec![NodeReport { state: "up".to_owned(), ..NodeReport::default() }],
            volumes: vec![volume],
            server: Some(crate::report::ServerReport {
                parity_memory: ParityMemoryReport { sums_bytes: 5, ..Default::default() },
                cores: vec![CoreReport {
                    core: 3,
                    turns: 7,
                    turns_busy_ns: 9_000_000,
                    turn_max_ns: 2_500_000,
                    turn_max_recent_ns: 1_500_000,
                    ..CoreReport::default()
                }],
                ..Default::default()
            }),
            ..PoolReport::default()
        };
        let one = text(std::slice::from_ref(&report));
        assert!(one.contains("fieldstone_node_up{node=\"0\"} 1\n"), "{one}");
        assert!(one.contains("fieldstone_parity_memory_bytes{use=\"sums\"} 5\n"), "{one}");
        let turns = [("turns_total", "7"), ("turn_seconds_total", "0.009")];
        let longest = [("turn_seconds_max", "0.0025"), ("turn_seconds_max_recent", "0.0015")];
        for (name, value) in turns.into_iter().chain(longest) {
            let line = format!("fieldstone_core_{name}{{core=\"3\"}} {value}\n");
            assert!(one.contains(&line), "{line} is not in {one}");
        }
        assert!(one.contains("fieldstone_requests_total{volume=\"a\\\"b\",op=\"read\"} 3\n"));
        assert!(one.contains("stage=\"total\",quantile=\"0.5\"} 0.0000015\n"), "{one}");
        let waited = "fieldstone_layer{volume=\"a\\\"b\",layer=\"luks\",counter=\"waited\"} 7\n";
        assert!(one.contains(waited), "{one}");
        let syncs = "fieldstone_store{volume=\"a\\\"b\",counter=\"syncs\"} 6\n";
        assert!(one.contains(syncs), "{one}");
        let sum = "fieldstone_stage_seconds_sum{volume=\"a\\\"b\",op=\"read\",stage=\"total\"} ";
        let line = one.lines().find_map(|line| line.strip_prefix(sum)).expect("a sum");
        let seconds: f64 = line.parse().expect("a number");
        assert!((seconds - 4.8e-6).abs() < 1e-12, "{line}");
        let ram = VolumeReport {
            name: "ram".to_owned(),
            protection: "none".to_owned(),
            ..VolumeReport::default()
        };
        let stores = PoolReport { volumes: vec![ram], ..PoolReport::default() };
        let one_and_stores = text(&[report.clone(), stores.clone()]);
        assert!(one_and_stores.contains("fieldstone_node_up{node=\"0\"} 1\n"), "{one_and_stores}");
        let two = text(&[report.clone(), PoolReport { pool: "ab".to_owned(), ..report }, stores]);
        assert!(two.contains("fieldstone_volume_size_bytes{volume=\"ram\"} 0\n"), "{two}");
        assert!(!two.contains("fieldstone_volume_journal_whole{volume=\"ram\"}"), "{two}");
        assert!(two.contains("fieldstone_node_up{pool=\"ab\",node=\"0\"} 1\n"), "{two}");
        assert!(
            two.contains("fieldstone_requests_total{pool=\"ab\",volume=\"a\\\"b\",op=\"read\"} 3")
        );
        assert_eq!(two.matches("# TYPE fieldstone_node_up gauge").count(), 1, "{two}");
        for line in one.lines().chain(two.lines()).filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').expect("name and value");
            assert!(name.starts_with("fieldstone_") && value.parse::<f64>().is_ok(), "{line}");
        }
    }
}
