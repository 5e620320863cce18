//! The values by which a database or directory marks superusers.

/// Reads `is_superuser` as EMQX does: `true`, or an integer from 1 on.
pub(crate) fn is_true(value: &[u8]) -> bool {
    let text = str::from_utf8(value).unwrap_or_default().trim();
    text == "true" || text.parse::<i64>().is_ok_and(|number| number >= 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superusers_are_read_as_emqx_reads_them() {
        for (value, expected) in [
            ("true", true),
            ("1", true),
            ("2", true),
            ("false", false),
            ("0", false),
            ("-1", false),
            ("", false),
            ("yes", false),
            ("t", false),
        ] {
            assert_eq!(is_true(value.as_bytes()), expected, "{value}");
        }
        assert!(!is_true(b"\xff"));
    }
}
