//! The errors of a scenario: the place, the key and the expected value. All errors are reported together.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioDiagnostic {
    /// "storm.toml:12", "--set a.clients=x", or the scenario's name.
    pub place: String,
    /// The key as `--set` takes it: "publishers.publish.rate". Empty for the scenario as a whole.
    pub key: String,
    pub message: String,
}

impl fmt::Display for ScenarioDiagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScenarioDiagnostic { place, key, message } = self;
        match key.is_empty() {
            true => write!(f, "{place}: {message}"),
            false => write!(f, "{place}: `{key}`: {message}"),
        }
    }
}

/// Returns one line for each error.
pub fn lines(diagnostics: &[ScenarioDiagnostic]) -> String {
    let lines: Vec<String> = diagnostics.iter().map(ScenarioDiagnostic::to_string).collect();
    lines.join("\n")
}

/// Returns "; did you mean `clients`?", or an empty text if no candidate is similar.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    input_errors::nearest(word, candidates).map_or(String::new(), |name| format!("; did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::did_you_mean;

    #[test]
    fn did_you_mean_suggests_similar_word_only() {
        let keys = ["clients", "client_id", "publish"];
        for (word, expected) in [
            ("cleints", "; did you mean `clients`?"),
            ("pubish", "; did you mean `publish`?"),
            ("payload", ""),
        ] {
            assert_eq!(did_you_mean(word, keys), expected);
        }
    }
}
