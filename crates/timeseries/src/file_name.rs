//! Files by their names: what fails says which file, where, and what was expected there.

use std::io;

use storage::{Storage, StorageFile};

use crate::DIRECTORY_NAME;
use crate::error::StoreError;

/// Names a file for errors.
#[derive(Clone, Debug)]
pub(crate) struct FileName {
    pub directory: String,
    pub name: String,
}

impl FileName {
    pub fn of(disk: &dyn Storage, name: &str) -> FileName {
        FileName {
            directory: format!("{}/{DIRECTORY_NAME}", disk.location()),
            name: name.to_owned(),
        }
    }

    pub fn path(&self) -> String {
        format!("{}/{}", self.directory, self.name)
    }

    pub fn io(&self, doing: &'static str) -> impl FnOnce(io::Error) -> StoreError + use<> {
        let file = self.path();
        move |source| StoreError::Io { doing, file, source }
    }

    pub fn corrupt(&self, offset: u64, expected: &'static str) -> StoreError {
        StoreError::Corrupt {
            file: self.path(),
            offset,
            expected,
        }
    }
}

/// All of `into`, or an error that names the place where the file ended.
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
