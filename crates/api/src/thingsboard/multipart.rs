//! The first file of a `multipart/form-data` body, piece by piece to the thread that writes it: no more than a few pieces are in memory.

use std::future::Future;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use multer::{Constraints, Multipart, SizeLimit};
use tokio::sync::mpsc;

use super::failure::Failure;

/// Between the connection and the thread that writes.
pub const PIECES_MAX: usize = 4;

pub enum Piece {
    File {
        name: String,
        content_type: String,
    },
    Bytes(Bytes),
    /// All of it was there. Without this it was cut off.
    End,
}

/// `Content-Type` says that it is one, and where its parts end.
pub fn boundary(headers: &HeaderMap) -> Result<String, Failure> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let boundary = content_type.and_then(|content_type| multer::parse_boundary(content_type).ok());
    boundary.ok_or_else(no_file)
}

/// Sends the first file on; `patience` is how long each piece may take. Whoever does not want the rest drops the receiver.
pub async fn send_file(
    body: Body,
    boundary: String,
    bytes_max: usize,
    patience: Duration,
    pieces: mpsc::Sender<Piece>,
) -> Result<(), Failure> {
    let limit = SizeLimit::new().whole_stream(bytes_max as u64);
    let mut parts =
        Multipart::with_constraints(body.into_data_stream(), boundary, Constraints::new().size_limit(limit));
    loop {
        let mut part = in_time(patience, parts.next_field()).await?.ok_or_else(no_file)?;
        let Some(name) = part.file_name() else { continue };
        let content_type = part.content_type().map(ToString::to_string);
        let mut piece = Piece::File {
            name: name.to_owned(),
            content_type: content_type.unwrap_or_else(|| "application/octet-stream".to_owned()),
        };
        loop {
            let is_last = matches!(piece, Piece::End);
            if pieces.send(piece).await.is_err() || is_last {
                return Ok(());
            }
            let bytes = in_time(patience, part.chunk()).await?;
            piece = bytes.map_or(Piece::End, Piece::Bytes);
        }
    }
}

async fn in_time<T>(patience: Duration, read: impl Future<Output = multer::Result<T>>) -> Result<T, Failure> {
    let read = tokio::time::timeout(patience, read).await;
    let read = read
        .map_err(|_| Failure::bad_request("the body did not come in time").with_status(StatusCode::REQUEST_TIMEOUT))?;
    read.map_err(|error| match error {
        multer::Error::StreamSizeExceeded { limit } => {
            Failure::bad_request(format!("the body is larger than {limit} bytes"))
                .with_status(StatusCode::PAYLOAD_TOO_LARGE)
        }
        error => Failure::bad_request(format!("the body is no multipart/form-data: {error}")),
    })
}

fn no_file() -> Failure {
    Failure::bad_request("Required part 'file' is not present: expected multipart/form-data with one file")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Name, type and bytes of the file, or the status.
    fn read(body: &[u8], bytes_max: usize) -> Result<(String, String, Vec<u8>), String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (sender, mut receiver) = mpsc::channel(PIECES_MAX);
            let body = Body::from(body.to_vec());
            let sent = send_file(body, "xY".to_owned(), bytes_max, Duration::from_secs(20), sender);
            let gathered = async {
                let mut found = (String::new(), String::new(), Vec::new());
                let mut has_ended = false;
                while let Some(piece) = receiver.recv().await {
                    match piece {
                        Piece::File { name, content_type } => (found.0, found.1) = (name, content_type),
                        Piece::Bytes(bytes) => found.2.extend_from_slice(&bytes),
                        Piece::End => has_ended = true,
                    }
                }
                (found, has_ended)
            };
            let (sent, (found, has_ended)) = tokio::join!(sent, gathered);
            sent.map_err(|failure| failure.message().to_owned())?;
            assert!(has_ended);
            Ok(found)
        })
    }

    #[test]
    fn the_first_file_is_found_and_bad_bodies_are_not() {
        let body = b"--xY\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nno file\r\n--xY\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f; w.bin\"\r\ncontent-type: application/x\r\n\r\n\x00\r\n--x\r\n\xff\r\n--xY--\r\n";
        let found = read(body, 1000).unwrap();
        assert_eq!((found.0.as_str(), found.1.as_str()), ("f; w.bin", "application/x"));
        assert_eq!(found.2, b"\x00\r\n--x\r\n\xff");
        for cut in 0..body.len() - 8 {
            assert!(read(&body[..cut], 1000).is_err(), "{cut}");
        }
        for bad in [&b""[..], b"\r\n", b"--\r\n\r\n", b"{}", b"--xY\r\n\r\n--xY--"] {
            assert!(read(bad, 1000).is_err());
        }
        assert!(read(body, 100).unwrap_err().contains("larger than 100 bytes"));
    }

    #[test]
    fn the_boundary_is_that_of_the_header() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, text.parse().unwrap());
            boundary(&headers)
        };
        assert_eq!(of("multipart/form-data; boundary=\"a b\"").unwrap(), "a b");
        assert!(of("application/json").is_err() && of("multipart/form-data").is_err());
        assert!(boundary(&HeaderMap::new()).is_err());
    }
}
