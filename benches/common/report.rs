//! Figures as a table and as JSON.

use std::path::Path;

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

    /// A line of the table.
    fn row(&self) -> String {
        let floor = self.floor.map(|floor| format!("{floor:.2}"));
        let ratio = self.floor.map(|floor| format!("{:.2}", self.value / floor));
        let verdict = if self.met() { "ok" } else { "FAIL" };
        format!(
            "{:<44} {:>10.2} {:>10} {:>7} {:>10.2}  {verdict:<4} {}; {}",
            format!("{} [{}]", self.name, self.unit),
            self.value,
            floor.unwrap_or_default(),
            ratio.unwrap_or_default(),
            self.limit,
            self.target,
            self.note,
        )
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name, "unit": self.unit, "value": self.value,
            "floor": self.floor, "limit": self.limit, "target": self.target,
            "met": self.met(), "note": self.note,
        })
    }
}

/// The figures of a run. Each is printed as it is found: a run takes a quarter of an hour, and may
/// be broken off.
pub struct Report {
    bench: &'static str,
    settings: Value,
    figures: Vec<Figure>,
}

impl Report {
    /// Begins the table of a run with these settings.
    pub fn begin(bench: &'static str, settings: Value) -> Self {
        println!(
            "\n{:<44} {:>10} {:>10} {:>7} {:>10}  {:<4} target; note",
            "figure", "agent", "floor", "ratio", "limit", ""
        );
        Self {
            bench,
            settings,
            figures: Vec::new(),
        }
    }

    /// Prints figures, and keeps them.
    pub fn found(&mut self, figures: impl IntoIterator<Item = Figure>) {
        for figure in figures {
            println!("{}", figure.row());
            self.figures.push(figure);
        }
    }

    /// Says how many targets are met, and writes the figures and what they were measured with to
    /// `target/bench/<bench>.json`.
    pub fn finish(mut self) -> anyhow::Result<()> {
        let met = self.figures.iter().filter(|figure| figure.met()).count();
        println!("{met} of {} targets met", self.figures.len());
        let figures: Vec<_> = self.figures.iter().map(Figure::json).collect();
        self.settings["figures"] = figures.into();
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
        std::fs::create_dir_all(&dir)?;
        let path = dir.join(format!("{}.json", self.bench));
        std::fs::write(&path, serde_json::to_string_pretty(&self.settings)? + "\n")?;
        println!("as JSON: {}", path.display());
        Ok(())
    }
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
