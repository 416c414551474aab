//! Points of a GPU that were measured elsewhere, for machines without one.
//!
//! `gpu_rows.json` is an array of rows as `fieldstone bench msr-throughput --json` writes them on a
//! machine with a card: the rows whose names end with `/gpu` and `/gpu-single`. Their fields
//! `card`, `driver` and `commit` say where they come from, and the report names them as recorded.

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::{Map, json};

use super::case::{Findings, Point, Who, parse_name};

const RECORDED: &str = include_str!("gpu_rows.json");

/// The fields of a row that matter here.
#[derive(Clone, Debug, Deserialize)]
struct Recorded {
    case: String,
    ours: f64,
    card: String,
    driver: String,
    commit: String,
}

/// Adds the recorded points, or says that there are none. `no_card` is the reason why the card of
/// this machine is not measured.
///
/// # Errors
/// The file is not valid.
pub fn add(no_card: &str, found: &mut Findings) -> anyhow::Result<()> {
    let points = parse(RECORDED)?;
    if points.is_empty() {
        found.absent.push(("GPU".to_owned(), format!("no GPU: {no_card}; none is recorded")));
        return Ok(());
    }
    let mut origins: Vec<String> = points.iter().map(|(_, origin)| origin.clone()).collect();
    origins.dedup();
    found.notes.push(format!("gpu: {} (here, no GPU: {no_card})", origins.join("; ")));
    found.points.extend(points.into_iter().map(|(point, _)| point));
    Ok(())
}

/// The points of a file, each with its origin.
fn parse(text: &str) -> anyhow::Result<Vec<(Point, String)>> {
    let rows: Vec<Recorded> = serde_json::from_str(text).context("gpu_rows.json")?;
    rows.iter().map(point).collect()
}

fn point(row: &Recorded) -> anyhow::Result<(Point, String)> {
    let (work, object_bytes, who) = parse_name(&row.case)
        .with_context(|| format!("gpu_rows.json: there is no case {:?}", row.case))?;
    let is_gpu = matches!(who, Who::Gpu | Who::GpuSingle);
    ensure!(is_gpu && row.ours > 0.0, "gpu_rows.json: {} is no rate of a GPU", row.case);
    let origin = format!("recorded on {}, driver {}, {}", row.card, row.driver, row.commit);
    let mut more = Map::new();
    more.insert("card".to_owned(), json!(row.card));
    more.insert("driver".to_owned(), json!(row.driver));
    more.insert("recorded".to_owned(), json!(origin));
    let point = Point { work, object_bytes, who, gb_per_second: row.ours, seconds: 0.0, more };
    Ok((point, origin))
}

#[cfg(test)]
mod tests {
    use super::super::case::Work;
    use super::*;

    #[test]
    fn the_file_is_valid() {
        let mut found = Findings::default();
        add("no card <here>", &mut found).expect("the file is valid");
        assert_eq!(found.points.is_empty(), !found.absent.is_empty());
        assert_eq!(found.points.is_empty(), found.notes.is_empty());
    }

    #[test]
    fn recorded_points_name_their_origin() {
        let row = r#"{"bench": "msr-throughput", "case": "rebuild/16M/gpu", "ours": 900.5,
            "peer": null, "card": "NVIDIA H200", "driver": "570.1", "commit": "abc"}"#;
        let points = parse(&format!("[{row}]")).expect("valid");
        let (point, origin) = &points[0];
        assert_eq!((point.work, point.object_bytes), (Work::Rebuild, 16 << 20));
        assert_eq!((point.who, point.gb_per_second), (Who::Gpu, 900.5));
        assert_eq!(origin, "recorded on NVIDIA H200, driver 570.1, abc");
        for wrong in [
            "{}".to_owned(),
            "[{}]".to_owned(),
            format!("[{}]", row.replace("/gpu", "/cpu-1")),
            format!("[{}]", row.replace("16M", "17M")),
            format!("[{}]", row.replace("900.5", "0")),
        ] {
            assert!(parse(&wrong).is_err(), "{wrong}");
        }
    }
}
