//! Firmware and software: what may be saved, whose it is, and its bytes with their checksum.

use std::fmt::Write;

use md5::{Digest, Md5};
use sha2::{Sha256, Sha384, Sha512};

use super::{Entities, EntityError, check_name};
use crate::ids::{DeviceId, DeviceProfileId, EntityId, OtaPackageId, TenantId};
use crate::model::{Device, DeviceProfile, Entity, OtaPackage, OtaPackageType};
use crate::repository::{Change, RepositoryError, StateKind};

/// Of one package.
pub const OTA_BYTES_MAX: usize = 256 << 20;

/// What comes with the bytes of a package.
#[derive(Clone, Debug, Default)]
pub struct OtaUpload {
    pub file_name: String,
    pub content_type: String,
    /// Hexadecimal; empty: it is computed.
    pub checksum: String,
    pub algorithm: String,
    pub data: Vec<u8>,
}

impl Entities {
    /// What it says of itself; a package that devices may have is changed in its description only.
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
        match self.put_alone(package, stored.as_ref(), now_ms) {
            Err(EntityError::Repository(RepositoryError::Unique { .. })) => Err(EntityError::invalid(
                "OtaPackage with such title and version already exists!",
            )),
            other => other,
        }
    }

    /// The bytes of a package that has none yet.
    pub fn save_ota_data(&self, id: OtaPackageId, upload: OtaUpload, now_ms: i64) -> Result<OtaPackage, EntityError> {
        let _changing = self.changing();
        let stored: OtaPackage = self.get(id.0)?;
        if stored.has_data || stored.has_url() {
            return Err(EntityError::invalid("Updating otaPackage data is prohibited!"));
        }
        if upload.data.is_empty() {
            return Err(EntityError::invalid("OtaPackage data should be specified!"));
        }
        let computed = checksum(&upload.algorithm, &upload.data)?;
        if !upload.checksum.is_empty() && !upload.checksum.eq_ignore_ascii_case(&computed) {
            return Err(EntityError::invalid("Wrong otaPackage file!"));
        }
        let mut package = OtaPackage {
            has_data: true,
            data_size: Some(upload.data.len() as u64),
            file_name: Some(upload.file_name),
            content_type: Some(upload.content_type),
            checksum: Some(computed),
            checksum_algorithm: Some(upload.algorithm),
            ..stored.clone()
        };
        let change = self.put(&mut package, Some(&stored), now_ms)?;
        self.repository.apply(&[data(id, Some(upload.data)), change])?;
        Ok(package)
    }

    pub fn ota_data(&self, id: OtaPackageId) -> Result<Vec<u8>, EntityError> {
        self.repository
            .state(StateKind::OtaData, id.0)?
            .ok_or(EntityError::NotFound)
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
        Ok(self.repository.apply(&[data(id, None), Change::Delete(id.entity())])?)
    }

    /// Its own, or that of its profile.
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

    /// Before a device or a profile is saved that names packages.
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

pub(super) fn data(id: OtaPackageId, bytes: Option<Vec<u8>>) -> Change {
    Change::PutState {
        state: StateKind::OtaData,
        id: id.0,
        bytes,
    }
}

fn checksum(algorithm: &str, data: &[u8]) -> Result<String, EntityError> {
    Ok(match algorithm {
        "MD5" => hex(&Md5::digest(data)),
        "SHA256" => hex(&Sha256::digest(data)),
        "SHA384" => hex(&Sha384::digest(data)),
        "SHA512" => hex(&Sha512::digest(data)),
        // As Guava writes it: the lowest byte first.
        "CRC32" => hex(&crc32(data).to_le_bytes()),
        other => {
            return Err(EntityError::invalid(format!(
                "checksumAlgorithm: {other}: expected MD5, SHA256, SHA384, SHA512 or CRC32"
            )));
        }
    })
}

/// That of zip and Ethernet.
fn crc32(data: &[u8]) -> u32 {
    let table: [u32; 256] = std::array::from_fn(|byte| {
        (0..8).fold(byte as u32, |crc, _| {
            (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg())
        })
    });
    let step = |crc: u32, byte: &u8| (crc >> 8) ^ table[usize::from(crc as u8 ^ byte)];
    !data.iter().fold(u32::MAX, step)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standards() {
        let of = |algorithm| checksum(algorithm, b"123456789").unwrap();
        assert_eq!(of("CRC32"), "2639f4cb");
        assert_eq!(of("MD5"), "25f9e794323b453885f5181f1b624d0b");
        assert_eq!(
            of("SHA256"),
            "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"
        );
        assert_eq!((of("SHA384").len(), of("SHA512").len()), (96, 128));
        assert!(checksum("MURMUR3_32", b"").is_err());
    }
}
