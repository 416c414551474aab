//! Progress bars on stderr. They are hidden if stderr is no terminal.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use fieldstone_files::Progress;
use fieldstone_server::report::ProgressReport;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use fieldstone_units as units;

/// Time between two updates of a bar.
const STEP: Duration = Duration::from_millis(200);

/// A bar that counts shards.
pub fn new_bar(name: &str) -> ProgressBar {
    styled_bar(name, "{prefix} [{bar:32}] {pos}/{len} shards  {msg}  ETA {eta}")
}

/// A bar that counts `things`.
pub fn counting_bar(name: &str, things: &str, total: u64) -> ProgressBar {
    let bar = styled_bar(name, "{prefix} [{bar:32}] {human_pos}/{human_len} {msg}  ETA {eta}");
    bar.set_length(total);
    bar.set_message(things.to_owned());
    bar
}

fn styled_bar(name: &str, template: &str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(0), target);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(name.to_owned());
    bar
}

/// Runs `work` and shows its progress on stderr if that is a terminal. The length may be unknown,
/// as it is for a stream.
pub fn with_bytes_bar<R>(
    name: &str,
    total_bytes: Option<u64>,
    work: impl FnOnce(&Progress) -> R,
) -> R {
    let progress = Progress::default();
    if !std::io::stderr().is_terminal() {
        return work(&progress);
    }
    let template = match total_bytes {
        Some(_) => {
            "{prefix} [{bar:32}] {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  \
             ETA {eta}"
        }
        None => "{prefix} {binary_bytes}  {binary_bytes_per_sec}",
    };
    let bar = styled_bar(name, template);
    bar.set_length(total_bytes.unwrap_or(0));
    let (ended, wait) = mpsc::channel::<()>();
    let (bar_ref, progress_ref) = (&bar, &progress);
    let result = std::thread::scope(|scope| {
        scope.spawn(move || {
            // The channel closes when the work ends, also when it panics.
            while wait.recv_timeout(STEP) == Err(RecvTimeoutError::Timeout) {
                bar_ref.set_position(progress_ref.done_bytes());
            }
        });
        let ended = ended;
        let result = work(&progress);
        drop(ended);
        result
    });
    bar.finish_and_clear();
    result
}

/// Sets a bar to the sum of the jobs.
pub fn show<'a>(bar: &ProgressBar, jobs: impl Iterator<Item = &'a ProgressReport>) {
    let (mut total, mut done, mut read, mut elapsed) = (0, 0, 0, 0);
    for job in jobs {
        total = job.shards_total.saturating_add(total);
        done = job.shards_done.saturating_add(job.shards_failed).saturating_add(done);
        read = job.read_bytes.saturating_add(read);
        elapsed = elapsed.max(job.elapsed_ns);
    }
    bar.set_length(total);
    bar.set_position(done);
    let rate = units::rate(read, Duration::from_nanos(elapsed));
    bar.set_message(format!("read {} at {rate}", units::size(read)));
}

/// A bar that counts bytes; 0 if their number is not known.
pub fn byte_bar(name: &str, total_bytes: u64) -> ProgressBar {
    let template = match total_bytes {
        0 => "{prefix} {binary_bytes}  {binary_bytes_per_sec}",
        _ => {
            "{prefix} [{bar:32}] {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  \
             ETA {eta}"
        }
    };
    let bar = styled_bar(name, template);
    bar.set_length(total_bytes);
    bar
}
