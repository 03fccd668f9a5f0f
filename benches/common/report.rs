//! Figures as a table and as JSON.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// One figure.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Name of the measured figure.
    pub name: &'static str,
    /// Measured value.
    pub value: f64,
    /// Unit of value, floor and limit.
    pub unit: &'static str,
    /// The same done raw, where there is such a thing.
    pub floor: Option<f64>,
    /// Target in words.
    pub target: &'static str,
    /// Target in the unit: the value must be at most, or below, that.
    pub limit: f64,
    /// Anything worth knowing about how it came about.
    pub note: String,
}

impl Figure {
    /// A figure without a floor.
    pub const fn new(
        name: &'static str,
        value: f64,
        unit: &'static str,
        target: &'static str,
        limit: f64,
        note: String,
    ) -> Self {
        Self {
            name,
            value,
            unit,
            floor: None,
            target,
            limit,
            note,
        }
    }

    fn met(&self) -> bool {
        self.value <= self.limit
    }
}

/// The figures as aligned text.
pub fn table(figures: &[Figure]) -> String {
    let mut text = format!(
        "\n{:<44} {:>10} {:>10} {:>7} {:>10}  {:<4} target; note\n",
        "figure", "agent", "floor", "ratio", "limit", ""
    );
    for figure in figures {
        let floor = figure.floor.map(|floor| format!("{floor:.2}"));
        let ratio = figure
            .floor
            .map(|floor| format!("{:.2}", figure.value / floor));
        let verdict = if figure.met() { "ok" } else { "FAIL" };
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "{:<44} {:>10.2} {:>10} {:>7} {:>10.2}  {verdict:<4} {}; {}",
            format!("{} [{}]", figure.name, figure.unit),
            figure.value,
            floor.unwrap_or_default(),
            ratio.unwrap_or_default(),
            figure.limit,
            figure.target,
            figure.note,
        );
    }
    let missed = figures.iter().filter(|figure| !figure.met()).count();
    let _ = writeln!(
        text,
        "{} of {} targets met",
        figures.len() - missed,
        figures.len()
    );
    text
}

/// Writes the figures and what they were measured with to `target/bench/<name>.json`.
pub fn store(name: &str, mut settings: Value, figures: &[Figure]) -> anyhow::Result<PathBuf> {
    let figures: Vec<_> = figures
        .iter()
        .map(|figure| {
            json!({
                "name": figure.name, "unit": figure.unit, "value": figure.value,
                "floor": figure.floor, "limit": figure.limit, "target": figure.target,
                "met": figure.met(), "note": figure.note,
            })
        })
        .collect();
    settings["figures"] = figures.into();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
    std::fs::create_dir_all(&dir)?;
    let path = dir.join(format!("{name}.json"));
    std::fs::write(&path, serde_json::to_string_pretty(&settings)? + "\n")?;
    Ok(path)
}

/// The value in the middle; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.as_slice() {
        [] => 0.0,
        all if all.len() % 2 == 1 => all[middle],
        all => f64::midpoint(all[middle - 1], all[middle]),
    }
}
