//! Encodes rows in the text format of COPY: one line per row, tabs between fields, `\N` for null. Parses the line
//! number from its errors.

use tokio_postgres::Error;

use crate::record::Record;

/// Appends the line of a record.
pub(super) fn put_line(record: &Record, columns: usize, out: &mut Vec<u8>) {
    for column in 0..columns {
        if column > 0 {
            out.push(b'\t');
        }
        match record.field(column) {
            None => out.extend_from_slice(b"\\N"),
            Some(value) => put_escaped(value, out),
        }
    }
    out.push(b'\n');
}

fn put_escaped(value: &[u8], out: &mut Vec<u8>) {
    for &byte in value {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            _ => out.push(byte),
        }
    }
}

/// Returns the number of the rejected line, from 0, that the server names as in `COPY t, line 3, column a: "x"`.
pub(super) fn line_of(error: &Error) -> Option<usize> {
    line_in(error.as_db_error()?.where_()?)
}

fn line_in(context: &str) -> Option<usize> {
    // The context may have further lines about calling functions.
    let (_, after) = context
        .lines()
        .find(|line| line.starts_with("COPY "))?
        .split_once(", line ")?;
    let digits = after.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse::<usize>().ok()?.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;

    #[test]
    fn values_are_escaped() {
        let records = sample(0, &[&[Some(b"a\tb\\c\r\n"), None, Some(b""), Some(b"\\N")]]);
        let mut out = Vec::new();
        put_line(&records[0], 4, &mut out);
        assert_eq!(out, b"a\\tb\\\\c\\r\\n\t\\N\t\t\\\\N\n");
    }

    #[test]
    fn the_line_number_of_an_error_is_found() {
        assert_eq!(line_in("COPY t, line 3, column a: \"x, line 9\""), Some(2));
        assert_eq!(
            line_in("SQL statement \"x\"\nPL/pgSQL function f()\nCOPY t, line 12: \"x\""),
            Some(11)
        );
        assert_eq!(line_in("PL/pgSQL function f() line 4"), None);
    }
}
