//! The first file of a `multipart/form-data` body. The boundary is the body's first line, so that no header is needed.

use super::failure::Failure;
use super::operation::FromBody;

pub struct Upload {
    pub name: String,
    pub content_type: String,
    pub bytes: Vec<u8>,
}

impl FromBody for Upload {
    const IS_READ: bool = true;

    fn from_body(bytes: &[u8]) -> Result<Upload, Failure> {
        first_file(bytes).ok_or_else(|| {
            Failure::bad_request("Required part 'file' is not present: expected multipart/form-data with one file")
        })
    }
}

fn first_file(body: &[u8]) -> Option<Upload> {
    let end = find(body, b"\r\n")?;
    let boundary = body
        .get(..end)
        .filter(|line| line.starts_with(b"--") && (3..=76).contains(&line.len()))?;
    let delimiter = [b"\r\n", boundary].concat();
    let mut rest = &body[end + 2..];
    loop {
        let head_end = find(rest, b"\r\n\r\n")?;
        let head = std::str::from_utf8(&rest[..head_end]).ok()?;
        let content = &rest[head_end + 4..];
        let length = find(content, &delimiter)?;
        if let Some(name) = parameter(head, "filename=") {
            return Some(Upload {
                name: name.to_owned(),
                content_type: header(head, "content-type")
                    .unwrap_or("application/octet-stream")
                    .to_owned(),
                bytes: content[..length].to_vec(),
            });
        }
        // The last one has two dashes behind the boundary.
        rest = content.get(length + delimiter.len()..)?.strip_prefix(b"\r\n")?;
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.split("\r\n").filter_map(|line| line.split_once(':'));
    lines
        .find(|(known, _)| known.trim().eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
}

fn parameter<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let of = header(head, "content-disposition")?;
    let value = of.split("; ").find_map(|part| part.strip_prefix(name))?;
    Some(value.trim_matches('"'))
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let mut from = 0;
    // Most of a body is no line's end: that byte is looked for first.
    loop {
        let at = from + bytes.get(from..)?.iter().position(|byte| *byte == what[0])?;
        if bytes[at..].starts_with(what) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_file_is_found_and_bad_bodies_are_not() {
        let body = b"--xY\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nno file\r\n--xY\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f w.bin\"\r\ncontent-type: application/x\r\n\r\n\x00\r\n--x\r\n\xff\r\n--xY--\r\n";
        let found = first_file(body).unwrap();
        assert_eq!(
            (found.name.as_str(), found.content_type.as_str()),
            ("f w.bin", "application/x")
        );
        assert_eq!(found.bytes, b"\x00\r\n--x\r\n\xff");
        for cut in 0..body.len() - 10 {
            assert!(first_file(&body[..cut]).is_none(), "{cut}");
        }
        for bad in [&b""[..], b"\r\n", b"--\r\n\r\n", b"{}", b"--x\r\n\r\n--x--"] {
            assert!(first_file(bad).is_none());
        }
    }
}
