//! Errors of the start of the HTTP server.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why the HTTP server did not start. Nothing keeps running.
#[derive(Debug)]
pub enum ApiStartError {
    Bind {
        address: SocketAddr,
        source: io::Error,
        owner: Option<net::PortOwner>,
    },
    /// No threads or file descriptors were available.
    Resources(io::Error),
    /// The file of the API keys or of the audit log cannot be read.
    File { path: PathBuf, source: io::Error },
}

impl fmt::Display for ApiStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiStartError::Bind {
                address,
                owner: Some(owner),
                ..
            } => {
                write!(
                    f,
                    "cannot bind the API to {address}: the port is used by {owner}; set another address with api.bind"
                )
            }
            ApiStartError::Bind {
                address,
                source,
                owner: None,
            } => {
                write!(
                    f,
                    "cannot bind the API to {address}: {source}; set another address with api.bind"
                )
            }
            ApiStartError::Resources(source) => write!(
                f,
                "cannot start the API: {source}; raise the limit of open files (ulimit -n) or of threads (ulimit -u)"
            ),
            ApiStartError::File { path, source } => write!(
                f,
                "cannot read {}: {source}; restore the file from a backup, or move it away to start without its contents",
                path.display()
            ),
        }
    }
}

impl std::error::Error for ApiStartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The texts contain the source, or the owner of the port.
            ApiStartError::Bind { .. } | ApiStartError::Resources(_) | ApiStartError::File { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_file_names_it_and_the_cause() {
        let error = ApiStartError::File {
            path: "data/api-keys.json".into(),
            source: io::Error::other("expected value at line 1 column 1"),
        };
        let expected = "cannot read data/api-keys.json: expected value at line 1 column 1; restore the file";
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}
