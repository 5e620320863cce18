//! The functions of `prelude.jq`, parsed once.

use std::sync::OnceLock;

use super::parse::{self, FunctionName, PreludeNames};
use super::term::Def;

const TEXT: &str = include_str!("prelude.jq");

struct Prelude {
    names: Vec<FunctionName>,
    defs: Vec<Def>,
}

fn prelude() -> &'static Prelude {
    static PRELUDE: OnceLock<Prelude> = OnceLock::new();
    PRELUDE.get_or_init(|| {
        let (names, defs) = parse::definitions(TEXT).unwrap_or_default();
        Prelude { names, defs }
    })
}

pub(super) fn names() -> PreludeNames<'static> {
    PreludeNames {
        prelude: &prelude().names,
    }
}

pub(super) fn defs() -> &'static [Def] {
    &prelude().defs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prelude_is_valid_jq() {
        let read = parse::definitions(TEXT).map_err(|error| {
            let line = TEXT[..error.at].lines().count();
            format!("line {line}: {}", error.message)
        });
        assert_eq!(read.map(|(names, _)| names.len() > 80), Ok(true));
    }
}
