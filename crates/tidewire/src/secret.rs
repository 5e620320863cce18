//! A value that must never reach a log, an error message or a terminal.

use std::fmt;

/// Prints as `***`, whatever the format. `expose` is the one way to the text, so that every use can be found.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

pub const REDACTED: &str = "***";

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_prints_itself() {
        let secret = Secret::new("hunter2");
        let all = format!("{secret} {secret:?} {:?} {:#?}", Some(&secret), vec![&secret]);
        assert!(!all.contains("hunter2"), "{all}");
        assert_eq!(secret.expose(), "hunter2");
    }
}
