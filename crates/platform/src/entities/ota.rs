//! Firmware and software packages: checks, assignment to devices, and data with a checksum.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard};

use md5::{Digest, Md5};
use sha2::{Sha256, Sha384, Sha512};

use super::{Entities, EntityError, check_name};
use crate::ids::{DeviceId, DeviceProfileId, EntityId, OtaPackageId, TenantId};
use crate::model::{Device, DeviceProfile, Entity, OtaPackage, OtaPackageType};
use crate::repository::{RepositoryChange, RepositoryError};

/// Largest package.
pub const OTA_BYTES_MAX: usize = 256 << 20;

/// Size of the parts in which a package is stored. The last one is shorter.
pub const OTA_PART_BYTES: usize = 1 << 20;

/// Metadata of an upload.
#[derive(Clone, Debug, Default)]
pub struct OtaUpload {
    pub file_name: String,
    pub content_type: String,
    /// Hexadecimal; computed if empty.
    pub checksum: String,
    pub algorithm: String,
}

/// Packages that are being uploaded.
pub(super) type Uploading = Arc<Mutex<HashSet<OtaPackageId>>>;

/// Receives the data of a package in pieces. [`Entities::abandon_ota`] or a new upload removes the written parts.
pub struct OtaWriter {
    id: OtaPackageId,
    upload: OtaUpload,
    checksum: Checksum,
    /// Less than one part.
    gathered: Vec<u8>,
    parts: u32,
    bytes: usize,
    uploading: Uploading,
}

impl Drop for OtaWriter {
    fn drop(&mut self) {
        lock(&self.uploading).remove(&self.id);
    }
}

fn lock(uploading: &Uploading) -> MutexGuard<'_, HashSet<OtaPackageId>> {
    uploading.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Entities {
    /// Saves the metadata of a package. Only the description of an existing package can change.
    pub fn save_ota_package(&self, mut package: OtaPackage, now_ms: i64) -> Result<OtaPackage, EntityError> {
        let _changing = self.changing();
        check_name("OtaPackage title", &package.title)?;
        check_name("OtaPackage version", &package.version)?;
        let stored = self.stored(&package, "otaPackage")?;
        match &stored {
            Some(stored) => {
                let is_same = [
                    ("type", stored.kind == package.kind),
                    ("title", stored.title == package.title),
                    ("version", stored.version == package.version),
                    ("url", stored.url == package.url),
                    ("deviceProfile", stored.device_profile_id == package.device_profile_id),
                    ("tag", package.tag.is_none() || stored.tag == package.tag),
                ];
                if let Some((what, _)) = is_same.into_iter().find(|(_, is_same)| !is_same) {
                    return Err(EntityError::invalid(format!(
                        "Updating otaPackage {what} is prohibited!"
                    )));
                }
                package = OtaPackage {
                    additional_info: package.additional_info,
                    ..stored.clone()
                };
            }
            None => {
                package.has_data = false;
                (package.data_size, package.file_name, package.content_type) = (None, None, None);
                if package.url.as_deref().is_some_and(|url| url.trim().is_empty()) {
                    package.url = None;
                }
                let tag = || format!("{} {}", package.title, package.version);
                package.tag = Some(package.tag.clone().filter(|tag| !tag.is_empty()).unwrap_or_else(tag));
            }
        }
        if let Some(profile) = package.device_profile_id {
            let known: Option<DeviceProfile> = self.find(profile.0)?;
            if known.is_none_or(|known| known.tenant_id != package.tenant_id) {
                return Err(EntityError::invalid(
                    "Can't assign otaPackage to non-existent device profile!",
                ));
            }
        }
        match self.put_one(package, stored.as_ref(), now_ms) {
            Err(EntityError::Repository(RepositoryError::Unique { .. })) => Err(EntityError::invalid(
                "OtaPackage with such title and version already exists!",
            )),
            other => other,
        }
    }

    /// Starts the upload of a package that has no data yet.
    pub fn begin_ota(&self, id: OtaPackageId, upload: OtaUpload) -> Result<OtaWriter, EntityError> {
        self.package_without_data(id)?;
        let checksum = Checksum::new(&upload.algorithm)?;
        if !lock(&self.uploading).insert(id) {
            return Err(EntityError::invalid("The otaPackage's data is being uploaded already!"));
        }
        let writer = OtaWriter {
            id,
            upload,
            checksum,
            gathered: Vec::new(),
            parts: 0,
            bytes: 0,
            uploading: Arc::clone(&self.uploading),
        };
        // Removes the parts of an interrupted upload.
        self.repository.apply(&[RepositoryChange::DeleteParts(id.0)])?;
        Ok(writer)
    }

    pub fn write_ota(&self, writer: &mut OtaWriter, mut bytes: &[u8]) -> Result<(), EntityError> {
        writer.bytes += bytes.len();
        if writer.bytes > OTA_BYTES_MAX {
            return Err(EntityError::invalid(format!(
                "OtaPackage data is too large: {OTA_BYTES_MAX} bytes at most"
            )));
        }
        writer.checksum.update(bytes);
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(OTA_PART_BYTES - writer.gathered.len()));
            writer.gathered.extend_from_slice(now);
            bytes = later;
            if writer.gathered.len() == OTA_PART_BYTES {
                self.put_part(writer)?;
            }
        }
        Ok(())
    }

    fn put_part(&self, writer: &mut OtaWriter) -> Result<(), EntityError> {
        let part = RepositoryChange::PutPart {
            owner: writer.id.0,
            number: writer.parts,
            bytes: std::mem::take(&mut writer.gathered),
        };
        writer.parts += 1;
        Ok(self.repository.apply(&[part])?)
    }

    /// Finishes an upload. After an error the package is unchanged.
    pub fn finish_ota(&self, mut writer: OtaWriter, now_ms: i64) -> Result<OtaPackage, EntityError> {
        let saved = self.try_finish_ota(&mut writer, now_ms);
        if saved.is_err() {
            self.abandon_ota(writer)?;
        }
        saved
    }

    fn try_finish_ota(&self, writer: &mut OtaWriter, now_ms: i64) -> Result<OtaPackage, EntityError> {
        if writer.bytes == 0 {
            return Err(EntityError::invalid("OtaPackage data should be specified!"));
        }
        let computed = std::mem::replace(&mut writer.checksum, Checksum::Crc32(crc32fast::Hasher::new())).finish();
        if !writer.upload.checksum.is_empty() && !writer.upload.checksum.eq_ignore_ascii_case(&computed) {
            return Err(EntityError::invalid("Wrong otaPackage file!"));
        }
        if !writer.gathered.is_empty() {
            self.put_part(writer)?;
        }
        let _changing = self.changing();
        let stored = self.package_without_data(writer.id)?;
        let upload = std::mem::take(&mut writer.upload);
        let mut package = OtaPackage {
            has_data: true,
            data_size: Some(writer.bytes as u64),
            file_name: Some(upload.file_name),
            content_type: Some(upload.content_type),
            checksum: Some(computed),
            checksum_algorithm: Some(upload.algorithm),
            ..stored.clone()
        };
        let change = self.put(&mut package, Some(&stored), now_ms)?;
        self.repository.apply(&[change])?;
        Ok(package)
    }

    /// Removes the written parts.
    pub fn abandon_ota(&self, writer: OtaWriter) -> Result<(), EntityError> {
        Ok(self.repository.apply(&[RepositoryChange::DeleteParts(writer.id.0)])?)
    }

    fn package_without_data(&self, id: OtaPackageId) -> Result<OtaPackage, EntityError> {
        let stored: OtaPackage = self.get(id.0)?;
        if stored.has_data || stored.has_url() {
            return Err(EntityError::invalid("Updating otaPackage data is prohibited!"));
        }
        Ok(stored)
    }

    /// Reads one part: [`OTA_PART_BYTES`] of a package, or the rest for the last part.
    pub fn ota_part(&self, id: OtaPackageId, number: u32) -> Result<Vec<u8>, EntityError> {
        self.repository.part(id.0, number)?.ok_or(EntityError::NotFound)
    }

    pub fn delete_ota_package(&self, id: OtaPackageId) -> Result<(), EntityError> {
        let _changing = self.changing();
        let named = Some(id.entity());
        let is_of_profile =
            |profile: &std::sync::Arc<DeviceProfile>| named == profile.firmware_id || named == profile.software_id;
        if self.directory().profiles().any(is_of_profile) {
            return Err(EntityError::invalid(
                "The otaPackage referenced by the device profile cannot be deleted!",
            ));
        }
        let mut is_used = false;
        self.repository.for_each(Device::KIND, &mut |record| {
            is_used |= record
                .read::<Device>()
                .is_ok_and(|device| named == device.firmware_id || named == device.software_id);
        })?;
        if is_used {
            return Err(EntityError::invalid(
                "The otaPackage referenced by the devices cannot be deleted!",
            ));
        }
        Ok(self.repository.apply(&[
            RepositoryChange::DeleteParts(id.0),
            RepositoryChange::Delete(id.entity()),
        ])?)
    }

    /// The package of the device, or that of its profile.
    pub fn ota_package_of(&self, device: DeviceId, kind: OtaPackageType) -> Result<Option<OtaPackage>, EntityError> {
        let device: Device = self.get(device.0)?;
        let own = match kind {
            OtaPackageType::Firmware => device.firmware_id,
            OtaPackageType::Software => device.software_id,
        };
        let of_profile = || {
            let directory = self.directory();
            let profile = directory.profile(device.device_profile_id?)?;
            match kind {
                OtaPackageType::Firmware => profile.firmware_id,
                OtaPackageType::Software => profile.software_id,
            }
        };
        match own.or_else(of_profile) {
            Some(id) => self.find(id.id),
            None => Ok(None),
        }
    }

    /// Checks the packages of a device or profile that is saved.
    pub(super) fn check_ota(
        &self,
        (firmware, software): (Option<EntityId>, Option<EntityId>),
        tenant: TenantId,
        profile: Option<DeviceProfileId>,
    ) -> Result<(), EntityError> {
        for (id, kind) in [
            (firmware, OtaPackageType::Firmware),
            (software, OtaPackageType::Software),
        ] {
            let Some(id) = id else { continue };
            let name = kind.name().to_lowercase();
            let package: Option<OtaPackage> = self.find(id.id)?;
            let problem = match package.filter(|package| package.tenant_id == tenant) {
                None => format!("Can't assign non-existent {name}!"),
                Some(package) if package.kind != kind => {
                    format!("Can't assign {name} with type: {}", package.kind.name())
                }
                Some(package) if !package.has_data && !package.has_url() => {
                    format!("Can't assign {name} with empty data!")
                }
                Some(package) if package.device_profile_id.is_some() && package.device_profile_id != profile => {
                    format!("Can't assign {name} with different deviceProfile!")
                }
                Some(_) => continue,
            };
            return Err(EntityError::invalid(problem));
        }
        Ok(())
    }
}

/// Checksum of the data received so far.
enum Checksum {
    Md5(Md5),
    Sha256(Sha256),
    Sha384(Sha384),
    Sha512(Sha512),
    Crc32(crc32fast::Hasher),
}

impl Checksum {
    fn new(algorithm: &str) -> Result<Checksum, EntityError> {
        Ok(match algorithm {
            "MD5" => Checksum::Md5(Md5::new()),
            "SHA256" => Checksum::Sha256(Sha256::new()),
            "SHA384" => Checksum::Sha384(Sha384::new()),
            "SHA512" => Checksum::Sha512(Sha512::new()),
            "CRC32" => Checksum::Crc32(crc32fast::Hasher::new()),
            other => {
                return Err(EntityError::invalid(format!(
                    "checksumAlgorithm: {other}: expected MD5, SHA256, SHA384, SHA512 or CRC32"
                )));
            }
        })
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Checksum::Md5(hash) => hash.update(bytes),
            Checksum::Sha256(hash) => hash.update(bytes),
            Checksum::Sha384(hash) => hash.update(bytes),
            Checksum::Sha512(hash) => hash.update(bytes),
            Checksum::Crc32(crc) => crc.update(bytes),
        }
    }

    fn finish(self) -> String {
        match self {
            Checksum::Md5(hash) => hex(&hash.finalize()),
            Checksum::Sha256(hash) => hex(&hash.finalize()),
            Checksum::Sha384(hash) => hex(&hash.finalize()),
            Checksum::Sha512(hash) => hex(&hash.finalize()),
            // As Guava writes it: the lowest byte first.
            Checksum::Crc32(crc) => hex(&crc.finalize().to_le_bytes()),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_match_the_standards() {
        let of = |algorithm| {
            let mut checksum = Checksum::new(algorithm).unwrap();
            b"123456789".chunks(4).for_each(|part| checksum.update(part));
            checksum.finish()
        };
        assert_eq!(of("CRC32"), "2639f4cb");
        assert_eq!(of("MD5"), "25f9e794323b453885f5181f1b624d0b");
        assert_eq!(
            of("SHA256"),
            "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"
        );
        assert_eq!((of("SHA384").len(), of("SHA512").len()), (96, 128));
        assert!(Checksum::new("MURMUR3_32").is_err());
    }
}
