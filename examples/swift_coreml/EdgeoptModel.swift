import CoreML
import CoreVideo
import Foundation

/// What `edgeopt.json` beside the packages says of frames and outputs: the parts of it that this file reads.
struct EdgeoptFacts: Decodable {
    struct Input: Decodable {
        let size: [Int]
    }

    struct Preprocess: Decodable {
        let colour: String
        let resize: String
        let cropFrom: Int
        let pad: Float
        let anchor: String
        let scale: Float
        let mean: [Float]
        let std: [Float]
    }

    struct Postprocess: Decodable {
        let decoder: String
        let boxes: String
        let strides: [Int]
        let scoreThreshold: Float
        let iouThreshold: Float
        let maxDetections: Int
        let top: Int
    }

    struct Recipe: Decodable {
        let task: String
        let classNames: [String]
        let input: Input
        let preprocess: Preprocess
        let postprocess: Postprocess
    }

    let recipe: Recipe

    static func read(_ url: URL) throws -> EdgeoptFacts {
        let decoder = JSONDecoder()
        decoder.keyDecodingStrategy = .convertFromSnakeCase
        return try decoder.decode(EdgeoptFacts.self, from: Data(contentsOf: url))
    }
}

/// Where the frame lies in the model's input: input = frame * scale + offset, in pixels.
struct Geometry {
    let scaleX: Float
    let scaleY: Float
    let offsetX: Float
    let offsetY: Float
}

struct Label {
    let name: String
    let score: Float
}

/// A box in the frame's pixels.
struct Box {
    let left: Float
    let top: Float
    let right: Float
    let bottom: Float
    let score: Float
    let name: String

    func overlap(_ other: Box) -> Float {
        let width = min(right, other.right) - max(left, other.left)
        let height = min(bottom, other.bottom) - max(top, other.top)
        guard width > 0, height > 0 else { return 0 }
        let both = width * height
        let area = (right - left) * (bottom - top) + (other.right - other.left) * (other.bottom - other.top)
        return both / (area - both)
    }
}

enum EdgeoptError: Error {
    case unknown(String)
}

/// A package that `edgeopt optimize --emit coreml` wrote, compiled by Xcode into the app.
///
/// A skeleton: its syntax is checked by a test, and no iPhone ran it.
final class EdgeoptModel {
    let facts: EdgeoptFacts
    private let model: MLModel
    private let inputName: String
    private let height: Int
    private let width: Int
    private let channels: Int
    private let input: MLMultiArray

    /// - Parameters:
    ///   - package: Name of the package in the app's bundle, such as `model_float16`.
    ///   - units: Where it may run; `.all` takes the Neural Engine, which computes in float16.
    init(package: String = "model_float16", units: MLComputeUnits = .all) throws {
        guard let url = Bundle.main.url(forResource: package, withExtension: "mlmodelc"),
            let json = Bundle.main.url(forResource: "edgeopt", withExtension: "json")
        else {
            throw EdgeoptError.unknown("\(package).mlpackage or edgeopt.json is not in the app")
        }
        facts = try EdgeoptFacts.read(json)
        let configuration = MLModelConfiguration()
        configuration.computeUnits = units
        model = try MLModel(contentsOf: url, configuration: configuration)
        guard let port = model.modelDescription.inputDescriptionsByName.first,
            let shape = port.value.multiArrayConstraint?.shape, shape.count == 4
        else {
            throw EdgeoptError.unknown("the model takes no picture of 1 x channels x height x width")
        }
        inputName = port.key
        (channels, height, width) = (shape[1].intValue, shape[2].intValue, shape[3].intValue)
        input = try MLMultiArray(shape: shape, dataType: .float32)
    }

    /// Run on a camera's frame (`kCVPixelFormatType_32BGRA`); return the outputs by name and where the frame lies.
    func run(_ frame: CVPixelBuffer) throws -> ([String: MLMultiArray], Geometry) {
        let geometry = try fill(frame)
        let features = try MLDictionaryFeatureProvider(dictionary: [inputName: MLFeatureValue(multiArray: input)])
        let made = try model.prediction(from: features)
        var outputs: [String: MLMultiArray] = [:]
        for name in made.featureNames {
            outputs[name] = made.featureValue(for: name)?.multiArrayValue
        }
        return (outputs, geometry)
    }

    // MARK: - Frame to tensor, as `preprocess` of the recipe says

    private func place(_ frameWidth: Int, _ frameHeight: Int) throws -> Geometry {
        let preprocess = facts.recipe.preprocess
        let (x, y) = (Float(width) / Float(frameWidth), Float(height) / Float(frameHeight))
        switch preprocess.resize {
        case "stretch":
            return Geometry(scaleX: x, scaleY: y, offsetX: 0, offsetY: 0)
        case "letterbox":
            let factor = min(x, y)
            let newWidth = max(Int(Float(frameWidth) * factor), 1)
            let newHeight = max(Int(Float(frameHeight) * factor), 1)
            let isCentred = preprocess.anchor == "centre"
            return Geometry(
                scaleX: Float(newWidth) / Float(frameWidth),
                scaleY: Float(newHeight) / Float(frameHeight),
                offsetX: Float(isCentred ? (width - newWidth) / 2 : 0),
                offsetY: Float(isCentred ? (height - newHeight) / 2 : 0)
            )
        case "centre_crop":
            let shorter = preprocess.cropFrom > 0 ? preprocess.cropFrom : min(width, height)
            let factor = max(Float(shorter) / Float(min(frameWidth, frameHeight)), max(x, y))
            let newWidth = max(Int((Float(frameWidth) * factor).rounded(.toNearestOrEven)), width)
            let newHeight = max(Int((Float(frameHeight) * factor).rounded(.toNearestOrEven)), height)
            return Geometry(
                scaleX: Float(newWidth) / Float(frameWidth),
                scaleY: Float(newHeight) / Float(frameHeight),
                offsetX: Float(-((newWidth - width) / 2)),
                offsetY: Float(-((newHeight - height) / 2))
            )
        default:
            throw EdgeoptError.unknown("resize \(preprocess.resize)")
        }
    }

    /// Write the frame into the input, linear between pixels as OpenCV has it. Plain loops: right first, then Metal.
    private func fill(_ frame: CVPixelBuffer) throws -> Geometry {
        let preprocess = facts.recipe.preprocess
        guard CVPixelBufferGetPixelFormatType(frame) == kCVPixelFormatType_32BGRA, channels == 3 else {
            throw EdgeoptError.unknown("a frame that is not BGRA, or a model of \(channels) channels")
        }
        CVPixelBufferLockBaseAddress(frame, .readOnly)
        defer { CVPixelBufferUnlockBaseAddress(frame, .readOnly) }
        guard let base = CVPixelBufferGetBaseAddress(frame) else {
            throw EdgeoptError.unknown("a frame without memory")
        }
        let pixels = base.assumingMemoryBound(to: UInt8.self)
        let stride = CVPixelBufferGetBytesPerRow(frame)
        let (frameWidth, frameHeight) = (CVPixelBufferGetWidth(frame), CVPixelBufferGetHeight(frame))
        let geometry = try place(frameWidth, frameHeight)
        let order = preprocess.colour == "RGB" ? [2, 1, 0] : [0, 1, 2]
        let out = input.dataPointer.assumingMemoryBound(to: Float.self)
        for row in 0..<height {
            let y = (Float(row) - geometry.offsetY + 0.5) / geometry.scaleY - 0.5
            for column in 0..<width {
                let x = (Float(column) - geometry.offsetX + 0.5) / geometry.scaleX - 0.5
                let isBorder = x < -0.5 || y < -0.5 || x > Float(frameWidth) - 0.5 || y > Float(frameHeight) - 0.5
                let (left, top) = (min(max(x, 0), Float(frameWidth - 1)), min(max(y, 0), Float(frameHeight - 1)))
                let (x0, y0) = (Int(left), Int(top))
                let (x1, y1) = (min(x0 + 1, frameWidth - 1), min(y0 + 1, frameHeight - 1))
                let (shareX, shareY) = (left - Float(x0), top - Float(y0))
                for channel in 0..<3 {
                    let byte = order[channel]
                    var value = preprocess.pad
                    if !isBorder {
                        let a = Float(pixels[y0 * stride + x0 * 4 + byte]) * (1 - shareX)
                        let b = Float(pixels[y0 * stride + x1 * 4 + byte]) * shareX
                        let c = Float(pixels[y1 * stride + x0 * 4 + byte]) * (1 - shareX)
                        let d = Float(pixels[y1 * stride + x1 * 4 + byte]) * shareX
                        value = ((a + b) * (1 - shareY) + (c + d) * shareY).rounded()
                    }
                    let mean = preprocess.mean[channel % preprocess.mean.count]
                    let deviation = preprocess.std[channel % preprocess.std.count]
                    let place = (channel * height + row) * width + column
                    out[place] = (value * preprocess.scale - mean) / deviation
                }
            }
        }
        return geometry
    }

    // MARK: - Outputs, as `postprocess` of the recipe says

    /// The likeliest classes of a classifier; scores are the model's own numbers.
    func labels(_ output: MLMultiArray) -> [Label] {
        let scores = (0..<output.count).map { output[$0].floatValue }
        let best = scores.indices.sorted { scores[$0] > scores[$1] }.prefix(facts.recipe.postprocess.top)
        return best.map { Label(name: name($0), score: scores[$0]) }
    }

    /// Boxes of the decoder `yolox`: rows of x, y, width, height, objectness and classes, a row a cell of each stride.
    func boxes(_ output: MLMultiArray, _ geometry: Geometry) throws -> [Box] {
        let postprocess = facts.recipe.postprocess
        guard postprocess.decoder == "yolox", postprocess.boxes == "usual", output.shape.count == 3 else {
            throw EdgeoptError.unknown("decoder \(postprocess.decoder): write it as edgeopt's recipes/heads has it")
        }
        let columns = output.shape[2].intValue
        let (rowStep, columnStep) = (output.strides[1].intValue, output.strides[2].intValue)
        var candidates: [Box] = []
        var row = 0
        for stride in postprocess.strides.isEmpty ? [8, 16, 32] : postprocess.strides {
            for y in 0..<(height / stride) {
                for x in 0..<(width / stride) {
                    let at = { (column: Int) -> Float in output[row * rowStep + column * columnStep].floatValue }
                    if let best = (5..<columns).max(by: { at($0) < at($1) }) {
                        let score = at(4) * at(best)
                        if score > postprocess.scoreThreshold {
                            let (size, step) = ((exp(at(2)), exp(at(3))), Float(stride))
                            let (centreX, centreY) = ((at(0) + Float(x)) * step, (at(1) + Float(y)) * step)
                            let (halfWidth, halfHeight) = (size.0 * step / 2, size.1 * step / 2)
                            candidates.append(
                                Box(
                                    left: (centreX - halfWidth - geometry.offsetX) / geometry.scaleX,
                                    top: (centreY - halfHeight - geometry.offsetY) / geometry.scaleY,
                                    right: (centreX + halfWidth - geometry.offsetX) / geometry.scaleX,
                                    bottom: (centreY + halfHeight - geometry.offsetY) / geometry.scaleY,
                                    score: score,
                                    name: name(best - 5)
                                )
                            )
                        }
                    }
                    row += 1
                }
            }
        }
        var kept: [Box] = []
        for box in candidates.sorted(by: { $0.score > $1.score }) where kept.count < postprocess.maxDetections {
            if !kept.contains(where: { $0.name == box.name && $0.overlap(box) > postprocess.iouThreshold }) {
                kept.append(box)
            }
        }
        return kept
    }

    private func name(_ index: Int) -> String {
        let names = facts.recipe.classNames
        return index < names.count ? names[index] : String(index)
    }
}
