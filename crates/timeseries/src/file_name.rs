//! File access whose errors name the file, the offset, and the expected contents.

use std::io;

use storage::{Storage, StorageFile};

use crate::error::StoreError;

/// Name of a file, for errors.
#[derive(Clone, Debug)]
pub(crate) struct FileName {
    pub directory: String,
    pub name: String,
}

impl FileName {
    pub fn of(disk: &dyn Storage, name: &str) -> FileName {
        FileName {
            directory: disk.directory(),
            name: name.to_owned(),
        }
    }

    pub fn path(&self) -> String {
        format!("{}/{}", self.directory, self.name)
    }

    pub fn io(&self, doing: &'static str) -> impl FnOnce(io::Error) -> StoreError + use<> {
        let file = self.path();
        move |source| StoreError::Io {
            operation: doing,
            file,
            source,
        }
    }

    pub fn corrupt(&self, offset: u64, expected: &'static str) -> StoreError {
        StoreError::Corrupt {
            file: self.path(),
            offset,
            expected,
        }
    }
}

/// Fills `into`, or fails with the offset at which the file ended.
pub(crate) fn read_exact(
    file: &dyn StorageFile,
    name: &FileName,
    offset: u64,
    into: &mut [u8],
) -> Result<(), StoreError> {
    match storage::read_full(file, offset, into).map_err(name.io("read"))? {
        done if done < into.len() => Err(name.corrupt(offset + done as u64, "more bytes")),
        _ => Ok(()),
    }
}

pub(crate) fn write_all(file: &dyn StorageFile, name: &FileName, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
    storage::write_all(file, offset, bytes).map_err(name.io("write"))
}
