//! Where the latency of one access goes, by the stages of the paper's Fig. 6.
//!
//! The paper cuts the life of a 4 KiB access, one at a time, into four stages. Our servers stamp
//! each request when it passes a stage (`fieldstone top` shows the intervals) and give the sums in
//! their metrics. With fio's latency around them, the same cut is:
//!
//! ```text
//!            fio                     our server                          nodes, OSDs
//!  submit |-- client --|
//!                      |-- socket -->| received
//!                                    |  scheduler, cache, volume         sent
//!                                    |----------------------------------->|
//!                                    |                                    |  storage
//!                                    |<-----------------------------------|
//!                                    |  completion                       replied
//!                      |<-- socket --| completed
//!  complete
//! ```
//!
//! | the paper's stage | here |
//! |---|---|
//! | client | fio's call that submits the access: libnbd, and the send |
//! | kernel (nbd) | there is no NBD client of a kernel here: both ways through the unix socket, with the wake-ups of server and fio, and NBD in our server before the first and after the last stamp. It is what is left of fio's latency |
//! | user-space | our server without the waiting for storage: scheduler, cache, volume or image, completion |
//! | storage | from the first message to a node or OSD to the last reply that the request needs, network included. Our nodes run in the server's process |
//!
//! The metrics are read before and after each cell, so only the accesses of the cell count.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::case::{Mode, PATTERNS, name};
use super::contender::{Own, Who};
use super::lab::Lab;
use crate::case::Case;
use crate::fio::{FioTarget, Measured, Pattern, Run};
use crate::interleaving::{Interleaving, Results};
use crate::process::Server;
use crate::rbd::contender as ceph;
use crate::rbd::place::Place;
use crate::stats::quotient;
use crate::subject::Subject;

/// The contenders whose requests have stamps that a benchmark can read.
pub const CONTENDERS: [Who; 2] = [Who::OwnNbd, Who::CephNbd];

/// The option that makes a server give its metrics at a free port.
const METRICS: [&str; 2] = ["--metrics", "127.0.0.1:0"];

/// The longest wait for the metrics.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The longest text of metrics that is read.
const METRICS_BYTES_MAX: u64 = 8 << 20;

/// A stage of the paper's figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PaperStage {
    /// The application, until the kernel has the request.
    Client,
    /// The kernel's NBD client.
    Kernel,
    /// The libraries in user space.
    UserSpace,
    /// The network and the cluster.
    Storage,
}

impl PaperStage {
    /// All, in the order of a request.
    pub const ALL: [Self; 4] = [Self::Client, Self::Kernel, Self::UserSpace, Self::Storage];

    /// The name in the paper.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Kernel => "kernel",
            Self::UserSpace => "user-space",
            Self::Storage => "storage",
        }
    }

    /// What it is here.
    pub fn here(self) -> &'static str {
        match self {
            Self::Client => "fio's call that submits the access",
            Self::Kernel => {
                "no kernel NBD client: the unix socket both ways, wake-ups, and NBD in our server"
            }
            Self::UserSpace => "our server: scheduler, cache, volume or image, completion",
            Self::Storage => "waiting for nodes or OSDs, network included",
        }
    }
}

/// The mean times of the accesses of a cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Breakdown {
    /// fio's mean latency.
    pub total_us: f64,
    /// The paper's stages; their sum is the total.
    pub stages_us: BTreeMap<PaperStage, f64>,
    /// The intervals of our server, by their names in `fieldstone top`.
    pub server_us: BTreeMap<String, f64>,
    /// Time measured.
    pub seconds: f64,
}

impl Breakdown {
    /// The cut of a cell: fio's numbers, and the intervals of the server.
    fn of(fio: &Measured, server_us: BTreeMap<String, f64>) -> Self {
        let storage = server_us.get("nodes").copied().unwrap_or(0.0);
        let server: f64 = server_us.values().sum();
        // The server may begin while the call that submits has not returned.
        let kernel = (fio.mean_us - fio.submit_us - server).max(0.0);
        let stages_us = BTreeMap::from([
            (PaperStage::Client, fio.submit_us),
            (PaperStage::Kernel, kernel),
            (PaperStage::UserSpace, server - storage),
            (PaperStage::Storage, storage),
        ]);
        Self { total_us: fio.mean_us, stages_us, server_us, seconds: fio.seconds }
    }

    /// The part of a stage, in per cent of all stages.
    pub fn share(&self, stage: PaperStage) -> Option<f64> {
        let all: f64 = self.stages_us.values().sum();
        quotient(100.0 * self.stages_us.get(&stage)?, all)
    }
}

/// The results.
#[derive(Clone, Debug)]
pub struct Breakdowns {
    /// One case for each pattern.
    pub cases: Vec<Case>,
    /// The cells, and who is missing.
    pub results: Results<Who, Breakdown>,
}

/// Measures 4 KiB accesses, one at a time, with replication.
///
/// # Errors
/// The cluster cannot be reached, or the user has interrupted the run.
pub fn measure(lab: &Lab<'_>) -> anyhow::Result<Breakdowns> {
    let mode = Mode::Replication;
    let cases: Vec<Case> =
        PATTERNS.into_iter().map(|pattern| Case::new(pattern, 4 << 10, 1)).collect();
    let names = cases.iter().map(|case| name(mode, case)).collect();
    let contenders = lab.contenders(mode, &CONTENDERS);
    let schedule = lab.schedule(names, &contenders);
    let mut interleaving = Interleaving::new(&schedule, lab.signals, lab.bar);
    let mut own = start(lab, &mut interleaving)?;
    let place = lab.enter_cluster(&mut interleaving, mode, false)?;
    let (files, size_bytes) = (&lab.setup.files, lab.setup.size_bytes);
    interleaving.expect(schedule.cells(&interleaving.present));
    for round in 0..lab.rounds {
        let title = format!("stages, {}", interleaving.title(round));
        if let Some((subject, _)) = &own {
            interleaving.say(format!("{title}: filling"));
            subject.fill(files, size_bytes)?;
        }
        interleaving.round(round, &title, |step| {
            let (load, seconds) = (cases[step.case].load, lab.seconds);
            let run = Run { load, seconds, seed: step.seed, jobs: 1 };
            if step.contender == Who::OwnNbd {
                return Ok(own.as_mut().context("it has left").and_then(|(subject, _)| {
                    let url = url_of(subject.server.as_ref().context("it has no server")?)?;
                    let load = || Ok(subject.cell(files, size_bytes, run)?.fio);
                    around(&url, run.load.pattern, load)
                }));
            }
            let place = place.as_ref().context("there is no image")?;
            Ok(on_cluster(&lab.setup.ceph(step.contender, lab.setup.cores), place, run))
        })?;
    }
    Ok(Breakdowns { cases, results: interleaving.results })
}

fn start(
    lab: &Lab<'_>,
    interleaving: &mut Interleaving<'_, Who, Breakdown>,
) -> anyhow::Result<Option<(Subject, Own)>> {
    if !interleaving.schedule.wanted().contains(&Who::OwnNbd) {
        return Ok(None);
    }
    let pool = lab.pool(Mode::Replication)?;
    let made = Own::make(&pool, "stages", &lab.setup)
        .and_then(|own| Ok((own.served_by(lab.setup.cores, &METRICS)?, own)));
    match made {
        Ok(open) => {
            interleaving.present.push(Who::OwnNbd);
            Ok(Some(open))
        }
        Err(error) => {
            interleaving.leave(Who::OwnNbd, &error);
            Ok(None)
        }
    }
}

/// Runs a load behind a server of its own for an image of a cluster.
fn on_cluster(setup: &ceph::Setup, place: &Place, run: Run) -> anyhow::Result<Breakdown> {
    let (mut server, socket) = setup.serve(place, &METRICS)?;
    let (url, target) = (url_of(&server)?, FioTarget::Nbd(socket));
    let cell = around(&url, run.load.pattern, || Ok(setup.fio(place, &target, run)?.0));
    // If the server died, its error says more than the client's.
    server.check()?;
    server.end()?;
    cell
}

/// Runs a load, and takes the intervals of the server apart that belong to it.
fn around(
    url: &str,
    pattern: Pattern,
    load: impl FnOnce() -> anyhow::Result<Measured>,
) -> anyhow::Result<Breakdown> {
    let op = if pattern.reads() { "read" } else { "write" };
    let before = Sums::parse(&get(url)?, op)?;
    let fio = load()?;
    let after = Sums::parse(&get(url)?, op)?;
    Ok(Breakdown::of(&fio, after.since(&before)?))
}

/// The sums of the intervals of one kind of request, since the server's start.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sums {
    seconds: BTreeMap<String, f64>,
    requests: f64,
}

impl Sums {
    /// Reads them from a server's metrics. All zero if there was no such request.
    fn parse(metrics: &str, op: &str) -> anyhow::Result<Self> {
        const FAMILY: &str = "fieldstone_stage_seconds";
        let mut sums = Self::default();
        for line in metrics.lines() {
            let Some(rest) = line.strip_prefix(FAMILY) else { continue };
            let Some((kind, labels, value)) = split_sample(rest) else {
                bail!("the metrics have an unexpected line: {line}");
            };
            if label(labels, "op") != Some(op) {
                continue;
            }
            let Some(stage) = label(labels, "stage") else { continue };
            let value: f64 = value.parse().with_context(|| format!("no number in {line}"))?;
            match kind {
                "_sum" if stage != "total" => {
                    *sums.seconds.entry(stage.to_owned()).or_default() += value;
                }
                "_count" if stage == "total" => sums.requests += value,
                _ => {}
            }
        }
        Ok(sums)
    }

    /// The mean time of each interval over the requests since `before`, in microseconds.
    fn since(&self, before: &Self) -> anyhow::Result<BTreeMap<String, f64>> {
        let requests = self.requests - before.requests;
        ensure!(requests > 0.0, "the server's metrics have no request of the load");
        let mean = |(stage, seconds): (&String, &f64)| {
            let earlier = before.seconds.get(stage).copied().unwrap_or(0.0);
            (stage.clone(), (seconds - earlier).max(0.0) / requests * 1e6)
        };
        Ok(self.seconds.iter().map(mean).collect())
    }
}

/// The kind, the labels and the value of a sample behind its name: `_sum{op="read"} 0.5`.
fn split_sample(rest: &str) -> Option<(&str, &str, &str)> {
    let (kind, rest) = rest.split_once('{')?;
    let (labels, value) = rest.rsplit_once("} ")?;
    Some((kind, labels, value.trim()))
}

/// The value of a label. The values that are asked for have no quotes.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = labels;
    let wanted = format!("{name}=\"");
    loop {
        let at = rest.find(&wanted)?;
        let is_whole = at == 0 || rest[..at].ends_with(',');
        rest = &rest[at + wanted.len()..];
        if is_whole {
            return rest.split('"').next();
        }
    }
}

/// The address of a server's metrics, from what it has printed.
fn url_of(server: &Server) -> anyhow::Result<String> {
    let said = server.said();
    let line = said.lines().find_map(|line| line.strip_prefix("metrics on http://"));
    let url = line.with_context(|| format!("the server names no metrics: {said}"))?;
    Ok(url.trim().to_owned())
}

/// Gets a page from an address such as `127.0.0.1:9100/metrics`.
fn get(url: &str) -> anyhow::Result<String> {
    let (address, path) = url.split_once('/').with_context(|| format!("{url} has no path"))?;
    let mut stream = TcpStream::connect(address).with_context(|| url.to_owned())?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    let asked = format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(asked.as_bytes())?;
    let mut text = String::new();
    stream.take(METRICS_BYTES_MAX).read_to_string(&mut text).with_context(|| url.to_owned())?;
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("{url}: no answer"))?;
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200"), "{url}: {status}");
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS_TEXT: &str = "\
# TYPE fieldstone_stage_seconds summary
fieldstone_stage_seconds{volume=\"v\",op=\"read\",stage=\"nodes\",quantile=\"0.5\"} 0.00001
fieldstone_stage_seconds_sum{volume=\"v\",op=\"read\",stage=\"nodes\"} 0.002
fieldstone_stage_seconds_count{volume=\"v\",op=\"read\",stage=\"nodes\"} 100
fieldstone_stage_seconds_sum{volume=\"v\",op=\"read\",stage=\"cache\"} 0.0005
fieldstone_stage_seconds_count{volume=\"v\",op=\"read\",stage=\"cache\"} 100
fieldstone_stage_seconds_sum{volume=\"v\",op=\"read\",stage=\"total\"} 0.0025
fieldstone_stage_seconds_count{volume=\"v\",op=\"read\",stage=\"total\"} 100
fieldstone_stage_seconds_sum{volume=\"v\",op=\"write\",stage=\"total\"} 9
fieldstone_stage_seconds_count{volume=\"v\",op=\"write\",stage=\"total\"} 7
fieldstone_requests_total{volume=\"v\",op=\"read\"} 100
";

    #[test]
    fn metrics_are_read_and_earlier_requests_do_not_count() {
        let before = Sums::parse(METRICS_TEXT, "read").expect("they are good");
        assert_eq!(before.requests, 100.0);
        assert_eq!(before.seconds.len(), 2, "the total is no stage");
        let later = METRICS_TEXT.replace("} 100\n", "} 300\n").replace("0.002\n", "0.012\n");
        let after = Sums::parse(&later, "read").expect("they are good");
        let means = after.since(&before).expect("200 requests");
        assert!((means["nodes"] - 50.0).abs() < 1e-9, "{means:?}");
        assert_eq!(means["cache"], 0.0);
        assert!(before.since(&before).is_err(), "no request came");
        assert_eq!(Sums::parse("", "read").expect("nothing yet"), Sums::default());
        for bad in ["fieldstone_stage_seconds_sum 3", &METRICS_TEXT.replace("0.002", "fast")] {
            assert!(Sums::parse(bad, "read").is_err(), "{bad}");
        }
    }

    #[test]
    fn labels_are_found_whole() {
        assert_eq!(label("pool=\"a\",op=\"read\"", "op"), Some("read"));
        assert_eq!(label("xop=\"no\",op=\"read\"", "op"), Some("read"));
        assert_eq!(label("xop=\"no\"", "op"), None);
    }

    #[test]
    fn the_stages_are_the_whole_latency() {
        let fio = Measured { mean_us: 100.0, submit_us: 7.0, ..Measured::default() };
        let server = BTreeMap::from([
            ("scheduler".to_owned(), 1.0),
            ("cache".to_owned(), 2.0),
            ("volume".to_owned(), 3.0),
            ("nodes".to_owned(), 30.0),
            ("completion".to_owned(), 4.0),
        ]);
        let cut = Breakdown::of(&fio, server.clone());
        let shares = PaperStage::ALL.map(|stage| cut.share(stage).expect("a number"));
        assert_eq!(shares, [7.0, 53.0, 10.0, 30.0]);
        // The clocks of two processes overlap: nothing is below zero.
        let early = Breakdown::of(&Measured { mean_us: 40.0, submit_us: 7.0, ..fio }, server);
        assert_eq!(early.stages_us[&PaperStage::Kernel], 0.0);
        let sum: f64 = PaperStage::ALL.iter().filter_map(|stage| early.share(*stage)).sum();
        assert!((sum - 100.0).abs() < 1e-9);
        assert_eq!(Breakdown::default().share(PaperStage::Client), None);
    }

    #[test]
    fn a_page_is_read_from_a_server_and_an_error_is_told() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let server = std::thread::spawn(move || {
            for answer in ["200 OK\r\n\r\nhello", "404 Not Found\r\n\r\n", ""] {
                let (mut stream, _) = listener.accept().expect("a client");
                // The whole question: bytes that are left unread would reset the connection.
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).expect("the rest of the question");
                    asked.extend(byte);
                }
                assert!(asked.starts_with(b"GET /metrics HTTP/1.1\r\n"));
                if !answer.is_empty() {
                    write!(stream, "HTTP/1.1 {answer}").expect("it reads");
                }
            }
        });
        let url = format!("{address}/metrics");
        assert_eq!(get(&url).expect("a page"), "hello");
        assert!(get(&url).expect_err("no page").to_string().contains("404"));
        assert!(get(&url).is_err(), "nothing came");
        server.join().expect("it ends");
        assert!(get(&url).is_err(), "nobody listens");
    }
}
